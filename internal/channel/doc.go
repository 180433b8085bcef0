// Package channel carries HTTP/2 over the two byte streams between host and
// guest, and ends both of them on either side.
//
//	down  fd 3   DialHost: host asks      ServeGuest: guest answers
//	up    fd 4   ServeHost: host decides  DialGuest: guest opens connections
//
// Direction is a property of the stream: on down only the host opens requests,
// on up only the guest does, and there nothing but CONNECT.
//
// # Hostile guests
//
// What the host reads passes an [Inspector] first, which knows frame heads
// only. It lets through what an honest peer of this package sends and turns
// everything else (unknown frames, floods, half frames, header blocks without
// end) into a [*Fault], which closes this connection and no other. Behind it
// stand golang.org/x/net/http2 and the windows of [Limits], which bound what
// the host can be made to buffer. Many small frames are slowed down rather
// than refused: an honest program may print one byte at a time.
//
// # Speed
//
// The price is system calls in the guest, so it reads through a buffer of
// 512 KiB and both ends send frames of up to [FrameBytes]. The host reads the
// bodies of large frames to where they belong. Buffers are held only while a
// burst lasts: an idle connection has 4 KiB.
package channel
