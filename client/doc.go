// Package client is the Go SDK of Belljar: it speaks the public API
// (/belljar/v1, described in api/openapi.yaml) and nothing else, so what the
// command line can do any program can do.
//
// # Where the API is
//
// [Dial] reaches the daemon of the calling user over its unix socket and
// starts it when there is none. [InProcess] turns an [http.Handler] that
// serves the API into a transport, which is how `belljar run` works without a
// daemon. [New] takes any transport.
//
// # Running something
//
// [Client.Exec] runs a command in a sandbox, carries its three streams and
// returns how it ended:
//
//	c, err := client.Dial(ctx, client.Options{})
//	...
//	sb, err := c.Create(ctx, sandbox.Spec{}, nil)
//	...
//	exit, err := c.Exec(ctx, string(sb.Sandbox.ID), client.ExecOptions{
//		Argv:    []string{"python3", "-c", "print(6*7)"},
//		Streams: client.Streams{Stdout: os.Stdout, Stderr: os.Stderr},
//	})
//
// Output and input are numbered by byte, so an Exec goes on where it stopped
// when the connection breaks or the daemon is restarted in the middle.
//
// # Errors
//
// What the API refuses is a [*sandbox.Error] with a kind, the field and value
// at fault and a hint. When the API cannot be reached the kind is
// [sandbox.Unavailable] and the cause is the transport's error.
//
// A Client is safe for concurrent use.
package client
