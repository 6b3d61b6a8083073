/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows read from outside of the process that has the table: its memory, mapped here, through the same pipeline as pulls.
 *
 * Nobody waits for such a reader, so nothing that it reads stands still: a segment may have been replaced, its pages may
 * hold another one, a record may be another key's. Therefore directory and slabs are copies of the reader's own, which
 * lead into memory of the table and nowhere else; ids are held against them; and a row counts when key and version of
 * its record, read before and after it, are the same. What is not found may be there all the same: it is asked for.
 *
 * Threads: one at a time for each mirror. Tests: tests/unit/ps/mirror_test.c.
 */
#include <stdlib.h>

#include "base/clock.h"
#include "base/fail.h"
#include "ps/table_batch.h"

/* ---- the table's side ---- */

static tern_status copy_dir(tn_table *t, tn_layout *layout)
{
	unsigned in = tn_epoch_enter(&t->epoch);
	const tn_dir *dir = atomic_load_explicit(&t->dir, memory_order_acquire);
	uint64_t n = 1ull << dir->depth;

	layout->depth = dir->depth;
	layout->dir = malloc(n * sizeof(*layout->dir));
	for (uint64_t i = 0; layout->dir && i < n; i++)
		layout->dir[i] = atomic_load_explicit(&dir->at[i], memory_order_acquire);
	tn_epoch_leave(&t->epoch, in);
	return layout->dir ? TERN_OK : TERN_E_NOMEM;
}

tern_status tn_table_layout(tn_table *t, tn_layout *layout)
{
	tern_status status = TERN_OK;

	*layout = (tn_layout){.changes = t->changed ? atomic_load(t->changed) : 0,
			      .head_bytes = t->head_bytes,
			      .stride = t->stride,
			      .shift = t->shift};
	if (!t->dense)
		status = copy_dir(t, layout);
	pthread_mutex_lock(&t->id_lock);
	layout->slabs = t->slab_count;
	layout->slab = malloc(TN_MAX(t->slab_count, 1) * sizeof(*layout->slab));
	for (uint32_t i = 0; layout->slab && i < t->slab_count; i++)
		layout->slab[i] = (tn_layout_slab){t->slabs[i].base, t->slabs[i].places};
	pthread_mutex_unlock(&t->id_lock);
	if (status == TERN_OK && layout->slab)
		return TERN_OK;
	tn_layout_free(layout);
	return tn_fail(TERN_E_NOMEM, "no memory for the layout of table \"%s\"", t->schema.name);
}

void tn_layout_free(tn_layout *layout)
{
	free(layout->dir);
	free(layout->slab);
	layout->dir = NULL;
	layout->slab = NULL;
}

/* ---- the reader's ---- */

struct tn_mirror {
	tn_table table; /* what the pipeline looks at, no more */
	tn_dir *dir;
	uint16_t misses[TN_BATCH];
	/* of a pull */
	const uint64_t *keys;
	uint8_t *rows, *found;
	const uint32_t *positions;
	uint64_t stride, from;
};

tn_mirror *tn_mirror_new(const tern_table_schema *schema, tn_layout *layout)
{
	uint64_t entries = layout->dir ? 1ull << layout->depth : 0;
	tn_mirror *m = aligned_alloc(64, (sizeof(*m) + 63) & ~63ull);
	tn_dir *dir = malloc(sizeof(*dir) + entries * sizeof(dir->at[0]));
	tn_slab *slabs = calloc(TN_MAX(layout->slabs, 1), sizeof(*slabs));
	tn_table *t;

	if (!m || !dir || !slabs) {
		free(m);
		free(dir);
		free(slabs);
		return NULL;
	}
	memset(m, 0, sizeof(*m));
	t = &m->table;
	t->schema = *schema;
	t->dense = schema->kind == TERN_TABLE_DENSE;
	t->value_bytes = schema->dim * (uint32_t)tern_dtype_bytes(schema->dtype ? schema->dtype : TERN_F32);
	t->head_bytes = layout->head_bytes;
	t->stride = layout->stride;
	t->shift = layout->shift;
	t->mask = (1u << layout->shift) - 1;
	t->slab_count = layout->slabs;
	t->slabs = slabs;
	for (uint32_t i = 0; i < layout->slabs; i++) /* nothing is written through it */
		slabs[i] = (tn_slab){.base = (uint8_t *)(uintptr_t)layout->slab[i].base,
				     .places = layout->slab[i].places};
	m->dir = dir;
	dir->depth = layout->depth;
	for (uint64_t i = 0; i < entries; i++)
		atomic_init(&dir->at[i], layout->dir[i]);
	tn_layout_free(layout);
	return m;
}

void tn_mirror_free(tn_mirror *m)
{
	if (!m)
		return;
	free(m->table.slabs);
	free(m->dir);
	free(m);
}

static TN_ALWAYS_INLINE uint64_t key_of(void *arg, uint32_t i)
{
	const tn_mirror *m = arg;

	return m->keys[m->from + i];
}

#define TRIES 64 /* a writer is at work for the copy of one row, unless it died there */

/* Key and row between two looks at the version. */
static TN_ALWAYS_INLINE bool copy(const tn_mirror *m, const tn_head *head, uint64_t key, uint8_t *dst)
{
	const tn_table *t = &m->table;

	for (unsigned tries = 0; tries < TRIES; tries++) {
		uint32_t v = atomic_load_explicit(&head->version, memory_order_acquire), key_words[2];

		if (v & TN_DEAD)
			return false;
		if (TN_LIKELY(!(v & TN_WRITING))) {
			tn_seq_load(key_words, head->key, sizeof(key_words));
			tn_seq_load(dst, (const uint8_t *)head + t->head_bytes, t->value_bytes);
			if (TN_LIKELY(!((v ^ atomic_load_explicit(&head->version, memory_order_relaxed)) &
					~(TN_LOCKED | TN_MARKS))))
				return (key_words[0] | (uint64_t)key_words[1] << 32) == key;
		}
		tn_cpu_relax();
	}
	return false;
}

static TN_ALWAYS_INLINE bool use(void *arg, uint32_t i, uint32_t id, tn_head *head)
{
	tn_mirror *m = arg;
	uint64_t at = m->from + i;
	uint8_t *dst = m->rows + m->stride * (m->positions ? m->positions[at] : at);

	(void)id;
	if (!copy(m, head, m->keys[at], dst))
		return false;
	if (m->found)
		m->found[m->positions ? m->positions[at] : at] = 1;
	return true;
}

uint64_t tn_mirror_pull(tn_mirror *m, const uint64_t *keys, uint64_t n, void *rows, uint64_t stride,
			const uint32_t *positions, uint8_t *found, uint32_t *left)
{
	const tn_table *t = &m->table;
	uint64_t count = 0;
	tn_batch b;

	m->keys = keys;
	m->rows = rows;
	m->stride = stride;
	m->positions = positions;
	m->found = found;
	b.t = t;
	b.dir = m->dir;
	b.write = false;
	b.outside = true;
	b.arg = m;
	for (m->from = 0; m->from < n; m->from += TN_BATCH) {
		uint32_t misses;

		b.bytes = t->head_bytes + t->value_bytes;
		misses = tn_batch_run(&b, (uint32_t)TN_MIN(n - m->from, TN_BATCH), key_of, use, m->misses);
		for (uint32_t i = 0; i < misses; i++)
			left[count++] = (uint32_t)m->from + m->misses[i];
	}
	return count;
}
