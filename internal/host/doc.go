// Package host asks this machine what it offers to the boundaries of Belljar
// and reports each answer as yes, no or cannot tell, with the reason and with
// what to do about it. `belljar doctor` prints the result.
//
// A probe does the thing it asks about wherever that is possible without a
// side effect: it creates a user namespace instead of reading a sysctl, opens
// the device instead of listing it. Nothing here changes the machine.
package host
