package httpapi

import (
	"context"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/manager"
	"github.com/belljar-sh/belljar/sandbox"
)

// noKeepers is a host without a keeper: nothing can be created.
type noKeepers struct{}

func (noKeepers) Acquire(context.Context, func(string) int) (manager.Keeper, error) {
	return nil, sandbox.Errorf(sandbox.Unavailable, "no keeper")
}
func (noKeepers) Adopt(context.Context) ([]manager.Keeper, error) { return nil, nil }
func (noKeepers) Reap(context.Context, string) error              { return nil }
func (noKeepers) Probe(context.Context) ([]driver.Report, error)  { return []driver.Report{}, nil }
func (noKeepers) Close(context.Context) error                     { return nil }

// noTemplates is an installation without a template.
type noTemplates struct{}

func (noTemplates) Resolve(ctx context.Context, name, user string) (manager.Resolved, error) {
	return manager.Resolved{}, sandbox.Errorf(sandbox.NotFound, "no such template").WithField("template", name)
}
func (noTemplates) List(context.Context) ([]sandbox.Template, error) { return nil, nil }
