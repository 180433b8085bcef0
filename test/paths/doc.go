// Package paths runs path vectors, files that say what a request with a
// hostile path, link, archive or name must come to, against real sandboxes:
// through the public API and through what unpacks and copies on the host's
// side.
//
//	go test -v ./test/paths/                       the vectors in testdata
//	BELLJAR_VECTORS=DIR go test -v ./test/paths/   and every *.json in DIR
//
// Each vector is one subtest and prints one line. A vector that this version
// of Belljar has no place for is skipped with the reason; one that the runner
// has no scenario for fails.
package paths
