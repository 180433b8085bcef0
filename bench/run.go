package main

import (
	"context"
	"syscall"

	"github.com/belljar-sh/belljar/bench/harness"
)

const terminate = syscall.SIGTERM

func (e *env) runTrue(ctx context.Context, r *harness.Result) error {
	return e.needRunsc(ctx)
}
