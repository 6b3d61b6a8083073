/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Status codes. Errors are values: no function of tern aborts, exits or prints in place of returning
 * one of these. Codes are grouped by blast radius, the thing that a caller has to give up when it sees
 * one: only this operation, the path it took, the whole peer, a device of this host, or the caller's own
 * program.
 *
 * Beside the code, the function that failed leaves a text for people in the calling thread, which names
 * the cause, the limit and the remedy: tern_detail().
 */
#ifndef TERN_STATUS_H
#define TERN_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

/*
 * X(name, blast radius, text). New codes go at the end of their group with the next free number of the
 * group; numbers are ABI and appear on the wire.
 */
#define TERN_STATUS_MAP(X)                                                                      \
	X(TERN_OK, 0, NONE, "success")                                                          \
	X(TERN_AGAIN, 1, NONE, "not accepted now: make progress and submit again")              \
	X(TERN_BUSY, 2, NONE, "something came in between: call progress again before you wait") \
	/* this operation only */                                                               \
	X(TERN_E_DEADLINE, -1, OP, "the deadline passed")                                       \
	X(TERN_E_CANCELED, -2, OP, "cancelled by the caller")                                   \
	X(TERN_E_ACCESS, -3, OP, "the remote key does not allow this access")                   \
	X(TERN_E_BOUNDS, -4, OP, "outside of the range that the remote key covers")             \
	X(TERN_E_STALE_KEY, -5, OP, "the remote key was revoked (generation does not match)")   \
	X(TERN_E_TRUNCATED, -6, OP, "the message is longer than the receive buffer")            \
	X(TERN_E_NO_METHOD, -7, OP, "the peer has no such method")                              \
	X(TERN_E_REMOTE, -8, OP, "the remote handler failed")                                   \
	X(TERN_E_INDETERMINATE, -9, OP, "the outcome at the peer is unknown")                   \
	X(TERN_E_NOT_FOUND, -10, OP, "no such object")                                          \
	X(TERN_E_EXISTS, -11, OP, "the object exists already")                                  \
	X(TERN_E_SHAPE, -12, OP, "shapes or types do not match")                                \
	X(TERN_E_TOO_LARGE, -13, OP, "larger than the limit")                                   \
	X(TERN_E_CORRUPT, -14, OP, "the data is corrupt")                                       \
	X(TERN_E_FLUSHED, -15, OP, "given up because its lane, channel or link was closed")     \
	X(TERN_E_OVERLOAD, -16, OP, "the peer has too much to do: try again later")             \
	/* the path: lane or network connection */                                              \
	X(TERN_E_LANE, -40, PATH, "the lane broke")                                             \
	X(TERN_E_UNREACHABLE, -41, PATH, "no path to the peer")                                 \
	X(TERN_E_REFUSED, -42, PATH, "the peer refused the connection")                         \
	/* the peer */                                                                          \
	X(TERN_E_PEER_LOST, -60, PEER, "the peer is gone")                                      \
	X(TERN_E_PEER_CLOSED, -61, PEER, "the peer closed the link")                            \
	X(TERN_E_PEER_RESTARTED, -62, PEER, "the peer restarted: its old incarnation is gone")  \
	X(TERN_E_VERSION, -63, PEER, "the peer speaks another wire version")                    \
	X(TERN_E_AUTH, -64, PEER, "authentication failed")                                      \
	X(TERN_E_PROTOCOL, -65, PEER, "the peer broke the protocol")                            \
	X(TERN_E_COOKIE, -66, PEER, "the peer belongs to another job")                          \
	/* a device or resource of this host */                                                 \
	X(TERN_E_NOMEM, -80, DEVICE, "out of memory")                                           \
	X(TERN_E_BUDGET, -81, DEVICE, "the byte budget is spent")                               \
	X(TERN_E_LIMIT, -82, DEVICE, "a limit of the system or of tern is reached")             \
	X(TERN_E_OS, -83, DEVICE, "the operating system refused")                               \
	X(TERN_E_NO_DEVICE, -84, DEVICE, "no such device or provider, or it is not usable")     \
	X(TERN_E_DEVICE, -85, DEVICE, "the device failed")                                      \
	X(TERN_E_UNSUPPORTED, -86, DEVICE, "the device or this build cannot do this")           \
	X(TERN_E_IN_USE, -87, DEVICE, "the address or the resource is in use")                  \
	X(TERN_E_IO, -88, DEVICE, "reading or writing a file failed")                           \
	/* a bug or a mistake of the caller: never retried */                                   \
	X(TERN_E_INVALID, -100, CALLER, "invalid argument")                                     \
	X(TERN_E_STATE, -101, CALLER, "not allowed in this state")                              \
	X(TERN_E_FORKED, -102, CALLER, "the handle belongs to the parent process")              \
	X(TERN_E_OPTION, -103, CALLER, "unknown option or value out of range")                  \
	X(TERN_E_INSECURE, -104, CALLER, "refused because it would be insecure")                \
	X(TERN_E_INTERNAL, -105, CALLER, "a bug in tern: please report it with the detail text")

typedef enum tern_status {
#define TERN_STATUS_ENUM(name, number, radius, text) name = (number),
	TERN_STATUS_MAP(TERN_STATUS_ENUM)
#undef TERN_STATUS_ENUM
} tern_status;

/* What a caller has to give up. Ordered: a larger value takes more down. */
typedef enum tern_radius {
	TERN_RADIUS_NONE,
	TERN_RADIUS_OP,
	TERN_RADIUS_PATH,
	TERN_RADIUS_PEER,
	TERN_RADIUS_DEVICE,
	TERN_RADIUS_CALLER,
} tern_radius;

/* The code's name ("TERN_E_BOUNDS"), or "TERN_E_?" for a number that is none. Never NULL. Any thread. */
const char *tern_status_name(tern_status status);

/* One line for people, without the particulars of a case. Never NULL. Any thread. */
const char *tern_status_text(tern_status status);

/* The blast radius of a code; TERN_RADIUS_CALLER for a number that is none. */
tern_radius tern_status_radius(tern_status status);

/*
 * The particulars of the latest failure in the calling thread: cause, limit, remedy. The text belongs to
 * tern and stays until the next call of a tern function in this thread; it is "" if there was no failure.
 * In a completion callback it is the detail of that completion.
 */
const char *tern_detail(void);

#ifdef __cplusplus
}
#endif

#endif
