/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a put goes with the message that follows it: said by whoever submits both (op->flags, channel/op.h), heeded by the link.
 */
#ifndef TN_LINK_PLACED_H
#define TN_LINK_PLACED_H

/* Puts with notification, which a message follows that is of use only with them, and of which nobody asks how many bytes
   came. Each kind has what is said of those above it. */
typedef enum tn_link_placed {
	TN_PLACED_NO,
	TN_PLACED_APART, /* of several pieces the last carries the notification, and more of it is in flight at once */
	TN_PLACED_BESIDE, /* and over streams it goes as what is small: ahead of bulk, over lane 0, as that message */
	TN_PLACED_LAST, /* and the message follows at once, and leaves with it */
} tn_link_placed;

#endif
