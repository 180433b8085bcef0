package gvisor

import (
	"os"
	"testing"

	"github.com/belljar-sh/belljar/internal/driver"
)

// nothingLeft checks that of a sandbox neither process nor cgroup nor mount is
// left.
func nothingLeft(t testing.TB, d *Driver, req *driver.CreateRequest) {
	t.Helper()
	pids, err := d.ids.findRoles(req.ID)
	if err != nil || len(pids) > 0 {
		t.Errorf("processes %v are left, %v", pids, err)
	}
	for _, p := range uniquePlaces(d.cgroups.dirs(req.ID)) {
		if _, err := os.Stat(p.Dir); !os.IsNotExist(err) {
			t.Errorf("cgroup %s is left: %v", p.Dir, err)
		}
	}
}
