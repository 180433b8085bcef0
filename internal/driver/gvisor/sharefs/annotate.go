package sharefs

import (
	"encoding/json"
	"fmt"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Annotation is the key in an OCI spec under which the shares of a sandbox
// stand, as a JSON list of [Share].
const Annotation = "sh.belljar.sharefs"

// hintPrefix begins gVisor's annotations for single mounts.
const hintPrefix = "dev.gvisor.spec.mount."

// Nobody is the id inside of owners that are not the caller.
const Nobody = 65534

// Share tells how one mount is served.
type Share struct {
	// Source is the Source of the mount in the spec, by which the gofer knows
	// it: destinations are rewritten on the way. It must differ between mounts.
	Source string `json:"source"`
	// ReadOnly refuses every change. The mount's own options should say "ro"
	// as well, so that the host's kernel agrees.
	ReadOnly bool `json:"read_only,omitempty"`
	// UID and GID are whom the caller's files seem to belong to inside.
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
	// Protect makes the names of package workspace read-only.
	Protect bool `json:"protect,omitempty"`
	// Donate allows to hand host descriptors of regular files to the sentry.
	// Set it only when the sentry runs under hostfilter.
	Donate bool `json:"donate,omitempty"`
	// Owner is the caller's identity on the host, as the gofer's own user
	// namespace numbers it, when it is not that of the gofer process. Files
	// that are made are then given to it.
	Owner *Owner `json:"owner,omitempty"`
}

// Owner is an identity on the host.
type Owner struct {
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
}

// Annotate writes shares into the annotations of spec, with the hints that make
// gVisor ask the gofer for each of these mounts (directfs off) and expect that
// others change files there too.
func Annotate(spec *specs.Spec, shares []Share) error {
	seen := make(map[string]bool)
	for _, s := range shares {
		if s.Source == "" || seen[s.Source] {
			return fmt.Errorf("sharefs: the source %q is empty or stands for two mounts", s.Source)
		}
		seen[s.Source] = true
	}
	b, err := json.Marshal(shares)
	if err != nil {
		return fmt.Errorf("sharefs: %w", err)
	}
	if spec.Annotations == nil {
		spec.Annotations = make(map[string]string)
	}
	spec.Annotations[Annotation] = string(b)
	for i, s := range shares {
		key := hintPrefix + "belljar-share-" + strconv.Itoa(i) + "."
		spec.Annotations[key+"source"] = s.Source
		spec.Annotations[key+"type"] = "bind"
		spec.Annotations[key+"share"] = "shared"
		spec.Annotations[key+"directfs"] = "off"
	}
	return nil
}

// sharesOf reads what Annotate wrote.
func sharesOf(spec *specs.Spec) ([]Share, error) {
	raw, ok := spec.Annotations[Annotation]
	if !ok {
		return nil, nil
	}
	var shares []Share
	if err := json.Unmarshal([]byte(raw), &shares); err != nil {
		return nil, fmt.Errorf("sharefs: annotation %s: %w", Annotation, err)
	}
	return shares, nil
}
