package sandbox

import (
	"errors"
	"fmt"
	"slices"
)

// Kind is the stable class of an [Error]. Callers switch on kinds; sentences
// may change between releases.
type Kind string

// The kinds of error. Each says what the caller can do about it.
const (
	Invalid           Kind = "invalid"            // the request is wrong; Field and Value say where
	NotFound          Kind = "not_found"          // no such object, or not the caller's
	AlreadyExists     Kind = "already_exists"     // the name is taken
	Conflict          Kind = "conflict"           // the object's state does not allow it now
	Unsupported       Kind = "unsupported"        // this host or boundary cannot do it
	Denied            Kind = "denied"             // a rule forbids it
	ResourceExhausted Kind = "resource_exhausted" // a limit or quota was hit
	Unavailable       Kind = "unavailable"        // try again: busy, starting or gone for a moment
	DeadlineExceeded  Kind = "deadline_exceeded"  // the time allowed is over
	Canceled          Kind = "canceled"           // the caller went away
	Internal          Kind = "internal"           // our fault
)

// Kinds lists them all.
func Kinds() []Kind {
	return []Kind{
		Invalid, NotFound, AlreadyExists, Conflict, Unsupported, Denied,
		ResourceExhausted, Unavailable, DeadlineExceeded, Canceled, Internal,
	}
}

// Valid reports whether k is one of the kinds above.
func (k Kind) Valid() bool { return slices.Contains(Kinds(), k) }

// Retryable reports whether the same request may succeed later unchanged.
func (k Kind) Retryable() bool { return k == Unavailable || k == ResourceExhausted }

// Error is an error with a kind and a sentence that may be shown to the
// caller. The cause is for logs and [errors.Is] and never crosses the API.
type Error struct {
	Kind    Kind   `json:"kind"`
	Message string `json:"message"`
	Field   string `json:"field,omitempty"` // what was wrong, as the caller named it
	Value   string `json:"value,omitempty"` // the offending value, cut to 256 bytes
	Hint    string `json:"hint,omitempty"`  // what to do about it

	cause error
}

const maxErrorValue = 256

// Errorf returns an [*Error]; a %w verb sets its cause.
func Errorf(kind Kind, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Kind: kind, Message: err.Error(), cause: errors.Unwrap(err)}
}

// WithField returns e naming the field and value at fault.
func (e *Error) WithField(field, value string) *Error {
	c := *e
	if len(value) > maxErrorValue {
		value = value[:maxErrorValue] + "..."
	}
	c.Field, c.Value = field, value
	return &c
}

// WithHint returns e with a remedy.
func (e *Error) WithHint(format string, args ...any) *Error {
	c := *e
	c.Hint = fmt.Sprintf(format, args...)
	return &c
}

// WithCause returns e with a private cause.
func (e *Error) WithCause(err error) *Error {
	c := *e
	c.cause = err
	return &c
}

// Error returns the sentence, with field and value in front when set. Values
// are quoted: they may come from a guest.
func (e *Error) Error() string {
	if e.Field == "" {
		return e.Message
	}
	return fmt.Sprintf("%s %q: %s", e.Field, e.Value, e.Message)
}

// Unwrap returns the private cause.
func (e *Error) Unwrap() error { return e.cause }

// Is makes errors.Is(err, &Error{Kind: k}) match on the kind alone.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Message == "" && t.Kind == e.Kind
}

// KindOf returns the kind of err: [Internal] for errors that are not of this
// package, "" for nil.
func KindOf(err error) Kind {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return Internal
}

// AsError returns err as an [*Error]. What is not one becomes [Internal] with
// a neutral sentence and err as its cause.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Kind: Internal, Message: "internal error", cause: err}
}
