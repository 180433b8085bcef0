package startbench

import (
	"fmt"
	"html"
	"io"
	"math"
	"strings"
)

// Sizes of the plot, in pixels.
const (
	plotWidth  = 860
	labelWidth = 190
	valueWidth = 90
	rowHeight  = 28
	barHeight  = 14
	headHeight = 84
	footHeight = 46
)

// style follows the reader's choice of light or dark.
const style = `<style>
  svg { background: #ffffff; font: 13px system-ui, sans-serif; }
  text { fill: #1f2328; } .small { font-size: 12px; fill: #59636e; } .title { font-size: 17px; font-weight: 600; }
  .grid { stroke: #d1d9e0; } .ours { fill: #1a7f4b; } .other { fill: #8c959f; } .p99 { stroke: #1f2328; stroke-width: 1.5; }
  @media (prefers-color-scheme: dark) {
    svg { background: #0d1117; }
    text { fill: #f0f6fc; } .small { fill: #9198a1; }
    .grid { stroke: #3d444d; } .ours { fill: #3fb950; } .other { fill: #6e7681; } .p99 { stroke: #f0f6fc; }
  }
</style>
`

// WritePlot writes the report as an SVG drawing: a bar to the median of each
// start, a whisker to its 99th percentile, on a logarithmic scale. It is legible
// in light and in dark surroundings.
func (r *Report) WritePlot(w io.Writer) error {
	var b strings.Builder
	height := headHeight + rowHeight*len(r.Starts) + footHeight
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" role="img">`+"\n", plotWidth, height)
	b.WriteString(style)
	text(&b, 16, 30, "title", "start", "Start of a sandbox, to the end of "+strings.Join(echo, " "))
	m := r.Machine
	text(&b, 16, 52, "small", "start", fmt.Sprintf("Linux %s, %s, %d CPUs, %.0f GiB; template %s; medians of %d rounds in turn, whiskers to the 99th percentile",
		m.Kernel, m.Architecture, m.CPUs, float64(m.MemoryBytes)/(1<<30), r.Template, r.Rounds))
	x := r.scale()
	r.grid(&b, x, height)
	for i, s := range r.Starts {
		r.row(&b, x, headHeight+i*rowHeight, s)
	}
	text(&b, labelWidth, float64(height-10), "small", "start", "milliseconds, logarithmic; green: Belljar, grey: others")
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// scale is where milliseconds lie.
type scale struct{ low, high float64 } // powers of ten

func (r *Report) scale() scale {
	least, most := math.Inf(1), 0.0
	for _, s := range r.Starts {
		least, most = min(least, s.Median), max(most, s.P99)
	}
	if most == 0 {
		return scale{0, 1}
	}
	low := math.Floor(math.Log10(max(least, 0.01)))
	return scale{low, max(math.Ceil(math.Log10(most)), low+1)}
}

func (s scale) at(ms float64) float64 {
	share := (math.Log10(max(ms, math.Pow(10, s.low))) - s.low) / (s.high - s.low)
	return labelWidth + share*(plotWidth-labelWidth-valueWidth)
}

func (r *Report) grid(b *strings.Builder, x scale, height int) {
	for e := x.low; e <= x.high; e++ {
		at := x.at(math.Pow(10, e))
		fmt.Fprintf(b, `<line class="grid" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>`+"\n", at, at, headHeight-8, height-footHeight+4)
		text(b, at, float64(height-footHeight+20), "small", "middle", fmt.Sprintf("%g", math.Pow(10, e)))
	}
}

func (r *Report) row(b *strings.Builder, x scale, y int, s Start) {
	class, middle := "other", float64(y)+barHeight/2.0
	if s.Ours {
		class = "ours"
	}
	text(b, labelWidth-10, middle+4, "", "end", s.Name)
	fmt.Fprintf(b, `<rect class="%s" x="%d" y="%d" width="%.1f" height="%d"><title>%s</title></rect>`+"\n",
		class, labelWidth, y, max(x.at(s.Median)-labelWidth, 1), barHeight, html.EscapeString(s.What))
	fmt.Fprintf(b, `<path class="p99" fill="none" d="M%.1f %.1fH%.1fM%.1f %.1fV%.1f"/>`+"\n",
		x.at(s.Median), middle, x.at(s.P99), x.at(s.P99), middle-4, middle+4)
	text(b, x.at(s.P99)+8, middle+4, "small", "start", fmt.Sprintf("%.3g ms", s.Median))
}

func text(b *strings.Builder, x, y float64, class, anchor, s string) {
	fmt.Fprintf(b, `<text class="%s" x="%.1f" y="%.1f" text-anchor="%s">%s</text>`+"\n", class, x, y, anchor, html.EscapeString(s))
}
