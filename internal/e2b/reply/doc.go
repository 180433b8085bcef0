// Package reply holds what the two services of the E2B wire share: how an
// error is said in each of the wire's forms, whom a request speaks for, and
// the bounds on messages.
package reply
