/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Judgement: what all checkers share. See check.h; each rule is checked where its facts are (device.c, wire.c,
 * load*.c, world.c).
 * Threads: none. Tests: the mutants.
 */
#include "sim/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "channel/shell.h"
#include "sim/device.h"

/* What there is, when it went wrong and somebody looks. */
static void dump(sim_world *world)
{
	char text[8192];

	for (uint32_t i = 0; i < world->lane_count; i++) {
		const sim_lane *lane = world->lanes[i];

		if (lane)
			sim_trace_line(world, "lane %u of %s: state %d, peer %u, %u live, %u events, %u held",
				       lane->number, lane->dev->node->name, (int)lane->state, lane->peer,
				       lane->live, lane->cqes, lane->held);
	}
	for (unsigned i = 0; i < world->node_count; i++) {
		if (!world->nodes[i].ctx)
			continue;
		TN_LIST_FOREACH(it, &world->nodes[i].ctx->links) {
			const tern_link *link = TN_LIST_ENTRY(it, tern_link, node);

			tn_link_print(link->m, text, sizeof(text));
			sim_trace_line(world, "%s: a link%s:\n%s", world->nodes[i].name,
				       link->gone ? ", gone" : "", link->gone ? "" : text);
		}
	}
}

void sim_violation(sim_world *world, const char *checker, const char *fmt, ...)
{
	sim_result *r = world->result;
	va_list args;

	if (r->failed)
		return;
	r->failed = true;
	snprintf(r->checker, sizeof(r->checker), "%s", checker);
	va_start(args, fmt);
	vsnprintf(r->text, sizeof(r->text), fmt, args);
	va_end(args);
	if (!world->options.verbose)
		return;
	sim_trace_line(world, "VIOLATION (%s): %s", r->checker, r->text);
	dump(world);
}

static uint64_t word_of(uint64_t id, uint64_t i)
{
	return (id + 1) * 0x9e3779b97f4a7c15ull + i * 0xd1342543de82ef95ull;
}

void sim_fill(void *buf, uint64_t bytes, uint64_t id)
{
	uint8_t *at = buf;
	uint64_t i = 0, word;

	for (; bytes >= 8; bytes -= 8, at += 8) {
		word = word_of(id, i++);
		memcpy(at, &word, 8);
	}
	word = word_of(id, i);
	if (bytes)
		memcpy(at, &word, bytes);
}

uint64_t sim_differs(const void *buf, uint64_t bytes, uint64_t id)
{
	const uint8_t *at = buf;
	uint64_t i = 0, there;

	for (; i < bytes / 8; i++) {
		memcpy(&there, at + i * 8, 8);
		if (there != word_of(id, i))
			break;
	}
	for (; i * 8 < bytes; i++) { /* the end, or the word that differs */
		uint64_t n = bytes - i * 8 < 8 ? bytes - i * 8 : 8, word = word_of(id, i);

		if (memcmp(at + i * 8, &word, n) == 0)
			continue;
		for (uint64_t k = 0;; k++)
			if (at[i * 8 + k] != ((const uint8_t *)&word)[k])
				return i * 8 + k;
	}
	return bytes;
}

void sim_check_links(sim_node *node)
{
	if (!node->ctx)
		return;
	TN_LIST_FOREACH(it, &node->ctx->links) {
		const tern_link *link = TN_LIST_ENTRY(it, tern_link, node);

		if (!link->gone)
			tn_link_check(link->m, 2);
	}
}

/* Work requests of the link that its devices have not ended, as the user sees it. */
static uint32_t posted(const tern_link *link)
{
	uint32_t n = 0;

	TN_LIST_FOREACH(it, &link->lanes)
		n += ((const sim_lane *)TN_LIST_ENTRY(it, tn_shell_lane, node)->lane)->live;
	return n;
}

/* A fault goes on that may keep the node from ending what it began. */
static bool held_up(const sim_node *node)
{
	uint64_t now = node->world->events.now;

	if (node->frozen_until > now || node->inside)
		return true;
	for (unsigned i = 0; i < SIM_DEVICES; i++)
		if (node->devs[i] && node->devs[i]->faults.again_until > now)
			return true;
	return false;
}

static void check_device(const sim_node *node, const tn_shell_dev *sdev)
{
	const sim_dev *dev = (const sim_dev *)sdev->dev;
	uint64_t taken = atomic_load(&sdev->budget.taken), out = 0;

	TN_LIST_FOREACH(it, &dev->lanes)
		if (TN_LIST_ENTRY(it, sim_lane, node)->live > 0)
			return;
	SIM_CHECK(node->world, "window", taken == 0,
		  "%s: %llu bytes of %s's budget are taken, and nothing is under way", node->name,
		  (unsigned long long)taken, sdev->name);
	SIM_CHECK(node->world, "lanes", tn_quota_sums_hold((tn_link_quota *)&sdev->quota),
		  "%s: %s counts %u data lanes, its links have others", node->name, sdev->name,
		  sdev->quota.taken);
	if (!sdev->grants)
		return;
	TN_LIST_FOREACH(it, &sdev->arbiter.seats) {
		const tn_arbiter_seat *seat = TN_LIST_ENTRY(it, tn_arbiter_seat, node);

		out += seat->granted - seat->done;
	}
	SIM_CHECK(node->world, "window", sdev->arbiter.out == out,
		  "%s: %s has %llu bytes granted, its links hold %llu", node->name, sdev->name,
		  (unsigned long long)sdev->arbiter.out, (unsigned long long)out);
}

void sim_check_silence(sim_world *world)
{
	for (unsigned i = 0; i < world->node_count; i++) {
		const sim_node *node = &world->nodes[i];

		if (!node->ctx || held_up(node))
			continue;
		for (unsigned k = 0; k < node->ctx->dev_count; k++)
			check_device(node, &node->ctx->devs[k]);
		TN_LIST_FOREACH(it, &node->ctx->links) {
			const tern_link *link = TN_LIST_ENTRY(it, tern_link, node);

			if (link->gone || tn_link_get_state(link->m) != TN_LINK_UP || posted(link) > 0)
				continue;
			SIM_CHECK(world, "window", tn_link_in_flight(link->m) == 0,
				  "%s: a link has %llu bytes in flight, and nothing under way", node->name,
				  (unsigned long long)tn_link_in_flight(link->m));
		}
	}
}

void sim_check_leaks(sim_world *world)
{
	SIM_CHECK(world, "leak", world->open_lanes == 0, "%u lanes are left", world->open_lanes);
	SIM_CHECK(world, "leak", world->open_regs == 0, "%u registrations are left", world->open_regs);
	SIM_CHECK(world, "leak", world->open_devs == 0, "%u devices are left", world->open_devs);
}
