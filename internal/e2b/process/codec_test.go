package process

import (
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	wire "github.com/belljar-sh/belljar/internal/gen/e2b/process"
)

func dataEvents(b []byte) []*wire.ProcessEvent_DataEvent {
	return []*wire.ProcessEvent_DataEvent{
		{Output: &wire.ProcessEvent_DataEvent_Stdout{Stdout: b}},
		{Output: &wire.ProcessEvent_DataEvent_Stderr{Stderr: b}},
		{Output: &wire.ProcessEvent_DataEvent_Pty{Pty: b}},
	}
}

func responses(ev *wire.ProcessEvent) []proto.Message {
	return []proto.Message{&wire.StartResponse{Event: ev}, &wire.ConnectResponse{Event: ev}}
}

// FuzzJSONCodec: what the codec writes, protojson reads back.
func FuzzJSONCodec(f *testing.F) {
	f.Add([]byte(nil))
	f.Add([]byte("text"))
	f.Add([]byte("\xff\xfe\xfd\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		events := []*wire.ProcessEvent{startEvent(7), keepaliveEvent(), {}}
		for _, d := range dataEvents(b) {
			events = append(events, &wire.ProcessEvent{Event: &wire.ProcessEvent_Data{Data: d}})
		}
		for _, ev := range events {
			for _, m := range responses(ev) {
				text, err := jsonCodec{}.MarshalAppend([]byte("#"), m)
				if err != nil || text[0] != '#' {
					t.Fatalf("%q, %v", text, err)
				}
				back := m.ProtoReflect().New().Interface()
				if err := protojson.Unmarshal(text[1:], back); err != nil {
					t.Fatalf("%s: %v", text, err)
				}
				again := m.ProtoReflect().New().Interface()
				if err := (jsonCodec{}).Unmarshal(text[1:], again); err != nil || !proto.Equal(back, again) || !proto.Equal(back, m) {
					t.Fatalf("%s: got %v and %v, %v", text, back, again, err)
				}
			}
		}
	})
}

func TestJSONCodec(t *testing.T) {
	var req wire.StartRequest
	if err := (jsonCodec{}).Unmarshal([]byte(`{"process":{"cmd":"x","later":1},"new":{}}`), &req); err != nil || req.GetProcess().GetCmd() != "x" {
		t.Errorf("unknown fields: got %v, %v", &req, err)
	}
	for _, bad := range []string{"", "x", "{", `{"process":1}`} {
		if err := (jsonCodec{}).Unmarshal([]byte(bad), &req); err == nil {
			t.Errorf("%q is a message", bad)
		}
	}
}

func BenchmarkJSONCodec(b *testing.B) {
	data := make([]byte, 256<<10)
	m := responses(&wire.ProcessEvent{Event: &wire.ProcessEvent_Data{Data: dataEvents(data)[0]}})[0]
	var buf []byte
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		buf, _ = jsonCodec{}.MarshalAppend(buf[:0], m)
	}
}
