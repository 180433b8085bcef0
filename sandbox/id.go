package sandbox

import "crypto/rand"

// ID names one sandbox for ever. It has exactly [IDLength] characters of
// [a-z0-9]: the E2B data plane accepts no others in a host name, and a fixed
// length keeps runtimes that match IDs by prefix from confusing two.
type ID string

// IDLength is the number of characters in an [ID]; 20 characters of base 36
// carry 103 random bits.
const IDLength = 20

const idAlphabet = "abcdefghijklmnopqrstuvwxyz0123456789"

// NewID draws a fresh random ID. It is safe for concurrent use.
func NewID() ID {
	// Rejection sampling keeps every character equally likely: 252 = 7 * 36.
	out := make([]byte, 0, IDLength)
	buf := make([]byte, 2*IDLength)
	for len(out) < IDLength {
		rand.Read(buf) // never fails (crypto/rand, Go 1.24 and later)
		for _, b := range buf {
			if b < 252 && len(out) < IDLength {
				out = append(out, idAlphabet[int(b)%len(idAlphabet)])
			}
		}
	}
	return ID(out)
}

// HashID makes an ID of a digest: equal digests have equal IDs.
func HashID(sum [32]byte) ID {
	out := make([]byte, IDLength)
	for i := range out {
		out[i] = idAlphabet[int(sum[i])%len(idAlphabet)]
	}
	return ID(out)
}

// ParseID returns s as an ID, or an [Invalid] error.
func ParseID(s string) (ID, error) {
	if len(s) != IDLength {
		return "", Errorf(Invalid, "a sandbox ID has %d characters of a-z and 0-9", IDLength).WithField("id", s)
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return "", Errorf(Invalid, "a sandbox ID has only the characters a-z and 0-9").WithField("id", s)
		}
	}
	return ID(s), nil
}

// maxName is the length of the longest name.
const maxName = 63

// CheckName reports whether s may name a sandbox or a template: 1 to 63
// letters, digits, '_', '.', '-', beginning with a letter or digit. It is
// written out because a regular expression would be compiled at every start of
// every program.
func CheckName(field, s string) error {
	good := s != "" && len(s) <= maxName && alphanumeric(s[0])
	for i := 0; good && i < len(s); i++ {
		good = alphanumeric(s[i]) || s[i] == '_' || s[i] == '.' || s[i] == '-'
	}
	if !good {
		return Errorf(Invalid, "a name has 1 to 63 letters, digits, '_', '.' or '-' and begins with a letter or digit").WithField(field, s)
	}
	return nil
}

func alphanumeric(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}
