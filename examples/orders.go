package main

import (
	"bufio"
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// orderRows and the seed make the same file on every machine.
const orderRows = 100_000

var orderSeed = [2]uint64{20260303, 42}

// orders is the generator: it calls row for each row in turn.
func orders(row func(id int, day, country string, quantity, cents int)) {
	r := rand.New(rand.NewPCG(orderSeed[0], orderSeed[1]))
	countries := []string{"AT", "BR", "CH", "DE", "FR", "IN", "JP", "KE", "US"}
	first := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for id := range orderRows {
		day := first.AddDate(0, 0, r.IntN(90)).Format("2006-01-02")
		row(id+1, day, countries[r.IntN(len(countries))], 1+r.IntN(9), 100+r.IntN(50_000))
	}
}

// makeOrders writes the file.
func makeOrders(_ *demo, data string) error {
	f, err := os.Create(filepath.Join(data, "orders.csv"))
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	fmt.Fprintln(w, "id,day,country,quantity,price_cents")
	orders(func(id int, day, country string, quantity, cents int) {
		fmt.Fprintf(w, "%d,%s,%s,%d,%d\n", id, day, country, quantity, cents)
	})
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Close()
}

// expectedOrders computes what the analysis has to print.
func expectedOrders() string {
	countries, days := map[string]int{}, map[string]int{}
	var totals []int
	orders(func(_ int, day, country string, quantity, cents int) {
		countries[country] += quantity * cents
		days[day] += quantity * cents
		totals = append(totals, quantity*cents)
	})
	var b strings.Builder
	fmt.Fprintf(&b, "rows %d\n", len(totals))
	for _, c := range byValue(countries) {
		fmt.Fprintf(&b, "%s %d\n", c, countries[c])
	}
	best := byValue(days)[0]
	slices.Sort(totals)
	fmt.Fprintf(&b, "best day %s %d\nmedian %d\n", best, days[best], totals[(len(totals)-1)/2])
	return b.String()
}

// byValue returns the keys, largest value first.
func byValue(m map[string]int) []string {
	return slices.SortedFunc(maps.Keys(m), func(a, b string) int {
		return cmp.Or(cmp.Compare(m[b], m[a]), strings.Compare(a, b))
	})
}

func checkOrders(_ *demo, r *outcome) error {
	if want := expectedOrders(); r.stdout != want {
		return fmt.Errorf("the analysis printed\n%s\nwant\n%s", r.stdout, want)
	}
	return nil
}
