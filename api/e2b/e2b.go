// Package e2b holds the messages of the E2B wire: a directory for each of its
// two services. Code for Go is generated of them into internal/gen/e2b.
package e2b

//go:generate go run -C ../../tools ./protogen -in ../api/e2b -out ..
