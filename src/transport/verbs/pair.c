/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the choice of a pair of rails for a lane: which of ours to which of the peer's, and between which GIDs.
 * Both sides compute it from the same two addresses and must find the same, so nothing that only one knows
 * (routes, present health) may take part.
 *
 *   can reach     the same link layer; RoCE: the same address family; InfiniBand: the same subnet prefix
 *   better        both healthy, then the longest common prefix (as far as a /24 or a /64), then the owner's
 *                 order of GIDs
 *   equal pairs   are taken in turn by the active side's count, so that lanes spread over rails
 *
 * Pure. Threads: any. Tests: tests/unit/transport/test_verbs_pair.c.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "transport/verbs/addr.h"

#define V4_PREFIX_BITS 96u

bool tn_vb_gid_is_v4(const union ibv_gid *gid)
{
	static const uint8_t prefix[12] = {[10] = 0xff, [11] = 0xff};

	return memcmp(gid->raw, prefix, sizeof(prefix)) == 0;
}

void tn_vb_gid_text(const union ibv_gid *gid, char *text, size_t bytes)
{
	char name[INET6_ADDRSTRLEN] = "?";

	inet_ntop(AF_INET6, gid->raw, name, sizeof(name));
	snprintf(text, bytes, "%s", name);
}

static uint32_t common_bits(const union ibv_gid *a, const union ibv_gid *b)
{
	uint32_t bits = 0;

	for (uint32_t i = 0; i < 16; i++) {
		uint8_t differ = a->raw[i] ^ b->raw[i];

		if (differ == 0) {
			bits += 8;
			continue;
		}
		while (!(differ & 0x80)) {
			differ = (uint8_t)(differ << 1);
			bits++;
		}
		break;
	}
	return bits;
}

/* How near two GIDs are, 1 and up; 0 = they cannot reach each other. */
static uint32_t nearness(bool ethernet, const union ibv_gid *a, const union ibv_gid *b)
{
	uint32_t bits = common_bits(a, b);

	if (!ethernet)
		return bits >= 64 ? 1 + 64 : 0;
	if (tn_vb_gid_is_v4(a) != tn_vb_gid_is_v4(b))
		return 0;
	/* Steps, and no further than a usual subnet: hosts of one subnet are all equally near. */
	if (tn_vb_gid_is_v4(a)) {
		bits = (bits - V4_PREFIX_BITS) / 8 * 8;
		return 1 + TN_MIN(bits, 24u);
	}
	bits = bits / 16 * 16;
	return 1 + TN_MIN(bits, 64u);
}

/* The best GIDs between two rails; the score, 0 = none. */
static uint32_t rails_score(const tn_vb_rail_addr *a, const tn_vb_rail_addr *p, uint8_t *a_gid,
			    uint8_t *p_gid)
{
	uint32_t best = 0, best_order = 0;

	if (a->ethernet != p->ethernet)
		return 0;
	for (uint8_t i = 0; i < a->gid_count; i++) {
		for (uint8_t j = 0; j < p->gid_count; j++) {
			uint32_t score = nearness(a->ethernet, &a->gids[i], &p->gids[j]);

			if (score == 0 || score < best || (score == best && i + j >= best_order))
				continue;
			best = score;
			best_order = (uint32_t)i + j;
			*a_gid = i;
			*p_gid = j;
		}
	}
	return best ? best + 1000u * a->healthy + 1000u * p->healthy : 0;
}

static tern_status unreachable(const tn_vb_addr *active, const tn_vb_addr *passive)
{
	const tn_vb_rail_addr *a = &active->rails[0], *p = &passive->rails[0];
	char a_text[INET6_ADDRSTRLEN], p_text[INET6_ADDRSTRLEN];

	if (a->ethernet != p->ethernet)
		return tn_fail(TERN_E_UNREACHABLE, "one side is RoCE, the other InfiniBand");
	tn_vb_gid_text(&a->gids[0], a_text, sizeof(a_text));
	tn_vb_gid_text(&p->gids[0], p_text, sizeof(p_text));
	return tn_fail(TERN_E_UNREACHABLE, "%s of %s and %s: no rail reaches one of the peer",
		       a->ethernet ? "the address families" : "the InfiniBand subnets", a_text, p_text);
}

/* The k-th set bit of a mask, counted round. */
static uint8_t nth_bit(uint32_t mask, uint32_t k)
{
	k %= (uint32_t)__builtin_popcount(mask);
	while (k--)
		mask &= mask - 1;
	return (uint8_t)__builtin_ctz(mask);
}

tern_status tn_vb_pair_choose(const tn_vb_addr *active, const tn_vb_addr *passive, tn_vb_pair *pair)
{
	uint32_t scores[TN_VB_RAILS_MAX][TN_VB_RAILS_MAX], best = 0;
	uint32_t rows = 0, columns = 0;
	uint8_t i, j;

	memset(pair, 0, sizeof(*pair));
	for (i = 0; i < active->count; i++) {
		for (j = 0; j < passive->count; j++) {
			scores[i][j] = rails_score(&active->rails[i], &passive->rails[j], &pair->active_gid,
						   &pair->passive_gid);
			best = TN_MAX(best, scores[i][j]);
		}
	}
	if (best == 0)
		return unreachable(active, passive);
	for (i = 0; i < active->count; i++)
		for (j = 0; j < passive->count; j++)
			rows |= scores[i][j] == best ? 1u << i : 0;
	pair->active = nth_bit(rows, active->turn);
	for (j = 0; j < passive->count; j++)
		columns |= scores[pair->active][j] == best ? 1u << j : 0;
	pair->passive = nth_bit(columns, active->turn);
	(void)rails_score(&active->rails[pair->active], &passive->rails[pair->passive], &pair->active_gid,
			  &pair->passive_gid);
	pair->near_bits = (uint8_t)(best % 1000u - 1);
	return TERN_OK;
}
