package gvisor

import "gvisor.dev/gvisor/pkg/cpuid"

// cacheLine is not compared by gVisor on this architecture.
func cacheLine(cpuid.FeatureSet) uint32 { return 0 }
