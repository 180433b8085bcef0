package process

import (
	"encoding/base64"
	"errors"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	wire "github.com/belljar-sh/belljar/internal/gen/e2b/process"
)

// jsonCodecs are connect's own for JSON, under both of its names, but for
// output: protojson looks at every character of the base64 that it has just
// written, which took three quarters of the daemon's time for a stream.
func jsonCodecs() connect.HandlerOption {
	return connect.WithHandlerOptions(
		connect.WithCodec(jsonCodec{"json"}), connect.WithCodec(jsonCodec{"json; charset=utf-8"}),
	)
}

type jsonCodec struct{ name string }

// Name implements connect.Codec.
func (c jsonCodec) Name() string { return c.name }

// Marshal implements connect.Codec.
func (c jsonCodec) Marshal(message any) ([]byte, error) { return c.MarshalAppend(nil, message) }

// MarshalAppend is what connect prefers to Marshal.
func (jsonCodec) MarshalAppend(dst []byte, message any) ([]byte, error) {
	if name, data, ok := output(message); ok {
		dst = append(append(append(dst, `{"event":{"data":{"`...), name...), `":"`...)
		dst = base64.StdEncoding.AppendEncode(dst, data)
		return append(dst, `"}}}`...), nil
	}
	m, ok := message.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is no message", message)
	}
	return protojson.MarshalOptions{}.MarshalAppend(dst, m)
}

// output returns the bytes of a message that carries output, and the name of
// their field.
func output(message any) (name string, data []byte, ok bool) {
	var ev *wire.ProcessEvent
	switch m := message.(type) {
	case *wire.StartResponse:
		ev = m.GetEvent()
	case *wire.ConnectResponse:
		ev = m.GetEvent()
	}
	switch out := ev.GetData().GetOutput().(type) {
	case *wire.ProcessEvent_DataEvent_Stdout:
		return "stdout", out.Stdout, true
	case *wire.ProcessEvent_DataEvent_Stderr:
		return "stderr", out.Stderr, true
	case *wire.ProcessEvent_DataEvent_Pty:
		return "pty", out.Pty, true
	}
	return "", nil, false
}

// Unmarshal implements connect.Codec. Fields that are not known here are those
// of a newer client.
func (jsonCodec) Unmarshal(b []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is no message", message)
	}
	if len(b) == 0 {
		return errors.New("no message is not an empty one")
	}
	return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(b, m)
}
