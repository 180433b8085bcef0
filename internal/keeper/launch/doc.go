// Package launch starts keepers and reapers: `belljar-engine` in namespaces of
// its own, with a directory that is locked before anybody can see it.
//
// # Namespaces
//
// As root the engine gets a new mount namespace. As an ordinary user it gets a
// new user namespace too, in which the user is 0; ids 1 to 65535 are the
// user's subordinate ids where /etc/subuid and newuidmap offer them, and do
// not exist otherwise. The engine proves where it is before it mounts
// anything.
//
// # Order
//
//	RUN/keepers/.new-K made, locked, sockets listening -> renamed to K
//	engine started with the lock and the sockets; clients may connect at once
//	engine serves, and says so, or why not, on a status pipe
//
// So nothing is polled, and [ReapStale] never meets a directory between its
// making and its locking. The engine is in a session of its own: signals of a
// terminal do not reach it, and it outlives its parent unless it has a
// lifeline.
package launch
