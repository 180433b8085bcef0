package gvisor

import "gvisor.dev/gvisor/pkg/cpuid"

func cacheLine(fs cpuid.FeatureSet) uint32 { return fs.CacheLine() }
