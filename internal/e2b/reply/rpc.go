package reply

import (
	"context"
	"encoding/base64"
	"errors"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/belljar-sh/belljar/sandbox"
)

// MaxMessage bounds one message of a caller, decompressed. Files do not travel
// in messages, only commands and their input do.
const MaxMessage = 8 << 20

// HandlerOptions are those of every Connect handler here.
func HandlerOptions() []connect.HandlerOption {
	return []connect.HandlerOption{
		connect.WithReadMaxBytes(MaxMessage),
		connect.WithCompressMinBytes(4 << 10),
	}
}

// codes maps kinds of error to the wire's.
var codes = map[sandbox.Kind]connect.Code{
	sandbox.Invalid:           connect.CodeInvalidArgument,
	sandbox.NotFound:          connect.CodeNotFound,
	sandbox.AlreadyExists:     connect.CodeAlreadyExists,
	sandbox.Conflict:          connect.CodeFailedPrecondition,
	sandbox.Unsupported:       connect.CodeUnimplemented,
	sandbox.Denied:            connect.CodePermissionDenied,
	sandbox.ResourceExhausted: connect.CodeResourceExhausted,
	sandbox.Unavailable:       connect.CodeUnavailable,
	sandbox.DeadlineExceeded:  connect.CodeDeadlineExceeded,
	sandbox.Canceled:          connect.CodeCanceled,
	sandbox.Internal:          connect.CodeInternal,
}

// Error says err as a Connect error; nil stays nil. A user that the sandbox
// does not have is a failed authentication on this wire.
func Error(err error) error {
	if err == nil {
		return nil
	}
	var done *connect.Error
	if errors.As(err, &done) {
		return done
	}
	e := sandbox.AsError(err)
	code, ok := codes[e.Kind]
	if !ok {
		code = connect.CodeInternal
	}
	if IsUser(e) {
		code = connect.CodeUnauthenticated
	}
	return Coded(code, e.Error())
}

// Coded is an error of the wire with a sentence of ours.
func Coded(code connect.Code, sentence string) error {
	return connect.NewError(code, errors.New(strings.ToValidUTF8(sentence, "\ufffd")))
}

// IsUser reports whether e says that the sandbox has no such user.
func IsUser(e *sandbox.Error) bool { return e.Field == "user" && e.Kind == sandbox.Invalid }

// User returns the user that the request of ctx speaks for, from its
// Authorization header: "" is the sandbox's own default.
func User(ctx context.Context) (string, error) {
	info, ok := connect.CallInfoForHandlerContext(ctx)
	if !ok {
		return "", nil
	}
	user, err := ParseUser(info.RequestHeader().Get("Authorization"))
	if err != nil {
		return "", Coded(connect.CodeUnauthenticated, err.Error())
	}
	return user, nil
}

// maxUser bounds the name of a user, as useradd does.
const maxUser = 256

// ParseUser reads a user's name from an Authorization header of the form
// "Basic base64(name:)"; "" has none. The password is not looked at: a user of
// the sandbox is not an authority, the sandbox's access token is.
func ParseUser(header string) (string, error) {
	if header == "" {
		return "", nil
	}
	scheme, encoded, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Basic") {
		return "", errors.New("the Authorization header names no user")
	}
	b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(encoded))
	if err != nil {
		return "", errors.New("the Authorization header is not base64")
	}
	name, _, ok := strings.Cut(string(b), ":")
	if !ok || len(name) > maxUser || strings.IndexByte(name, 0) >= 0 {
		return "", errors.New("the Authorization header names no user")
	}
	return name, nil
}

// Bounds and default of the pause after which a silent stream shows that it
// lives.
const (
	defaultKeepalive = 90 * time.Second
	maxKeepalive     = 24 * 3600
)

// Keepalive returns the pause that the request of ctx asks for, in its header
// Keepalive-Ping-Interval, in seconds.
func Keepalive(ctx context.Context) time.Duration {
	info, ok := connect.CallInfoForHandlerContext(ctx)
	if !ok {
		return defaultKeepalive
	}
	n, err := strconv.Atoi(info.RequestHeader().Get("Keepalive-Ping-Interval"))
	if err != nil || n < 1 || n > maxKeepalive {
		return defaultKeepalive
	}
	return time.Duration(n) * time.Second
}
