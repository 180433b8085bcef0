package channel_test

import (
	"context"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/belljar-sh/belljar/internal/channel"
)

// A guest that asks for nothing for an hour is served when it does.
func TestSilentGuest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host, guest := net.Pipe()
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- channel.ServeHost(ctx, host, channel.DefaultLimits(), http.NotFoundHandler()) }()
		select {
		case err := <-served:
			t.Fatalf("the channel ended after %v: %v", time.Hour, err)
		case <-time.After(time.Hour):
		}
		g, err := channel.DialGuest(guest)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.Connect(t.Context(), "nowhere:1"); err == nil {
			t.Error("a handler that refuses everything let it through")
		}
		select {
		case <-g.Done():
			t.Error("the channel ended with the refusal")
		default:
		}
		cancel()
		if err := <-served; err != nil {
			t.Errorf("got %v, want no fault", err)
		}
		g.Close()
	})
}
