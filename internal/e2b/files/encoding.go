package files

import (
	"strconv"
	"strings"
)

// encoding is how a body is sent.
type encoding int

const (
	identity encoding = iota
	gzipped
	unacceptable
)

// chooseEncoding reads Accept-Encoding: gzip where the caller takes it at least
// as gladly as the bytes as they are. A caller who names only codings that are
// not spoken here gets none, as E2B has it: he would have said so otherwise.
func chooseEncoding(accept string) encoding {
	weight := map[string]float64{}
	for part := range strings.SplitSeq(accept, ",") {
		name, params, _ := strings.Cut(part, ";")
		if name = strings.ToLower(strings.TrimSpace(name)); name != "" {
			weight[name] = quality(params)
		}
	}
	if len(weight) == 0 {
		return identity
	}
	rest := weight["*"] // of what is not named
	of := func(name string) float64 {
		if q, ok := weight[name]; ok {
			return q
		}
		return rest
	}
	switch zip, plain := of("gzip"), of("identity"); {
	case zip > 0 && zip >= plain:
		return gzipped
	case plain > 0:
		return identity
	}
	return unacceptable
}

// quality reads "q=0.5", 1 where there is none and 0 where it is no quality.
func quality(params string) float64 {
	for p := range strings.SplitSeq(params, ";") {
		k, v, ok := strings.Cut(p, "=")
		if !ok || !strings.EqualFold(strings.TrimSpace(k), "q") {
			continue
		}
		q, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
		if err != nil || !(q >= 0 && q <= 1) {
			return 0
		}
		return q
	}
	return 1
}
