/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns memory registration: one MR per extent, with the access of its exposure class and nothing more. No
 * relaxed ordering, so that a flag word may follow its data (TN_CAP_ORDERED_WRITES).
 *
 * Threads: called with mem's growth lock held. Tests: tests/unit/transport/test_verbs_life.c.
 */
#include <errno.h>
#include <stdio.h>

#include "base/fail.h"
#include "base/options.h"
#include "base/os.h"
#include "transport/verbs/verbs.h"

static int access_of(uint32_t exposure)
{
	int access = IBV_ACCESS_LOCAL_WRITE;

	if (exposure & TERN_ACCESS_READ)
		access |= IBV_ACCESS_REMOTE_READ;
	if (exposure & TERN_ACCESS_WRITE)
		access |= IBV_ACCESS_REMOTE_WRITE;
	return access;
}

static tern_status refused(tn_vb_rail *rail, const tn_extent *ext)
{
	char bytes[32], limit[32], hard[32];
	tn_os_limits limits;
	int err = errno;

	rail->refused = true;
	tn_os_limits_get(&limits);
	tn_format_bytes(ext->bytes, bytes, sizeof(bytes));
	errno = err;
	if (err != ENOMEM)
		return tn_fail_errno(TERN_E_DEVICE, "ibv_reg_mr", "%s on %s", bytes, rail->name);
	if (limits.memlock_bytes == UINT64_MAX)
		return tn_fail_errno(
			TERN_E_NOMEM, "ibv_reg_mr",
			"%s on %s; memlock is unlimited: the device's limit is %d regions of at most %llu "
			"bytes",
			bytes, rail->name, rail->attr.max_mr, (unsigned long long)rail->attr.max_mr_size);
	tn_format_bytes(limits.memlock_bytes, limit, sizeof(limit));
	if (limits.memlock_bytes_max == UINT64_MAX)
		snprintf(hard, sizeof(hard), "unlimited");
	else
		tn_format_bytes(limits.memlock_bytes_max, hard, sizeof(hard));
	errno = err;
	return tn_fail_errno(
		TERN_E_NOMEM, "ibv_reg_mr",
		"%s on %s; RLIMIT_MEMLOCK is %s (hard limit %s): raise it with 'ulimit -l unlimited', "
		"LimitMEMLOCK=infinity of systemd, or --ulimit memlock=-1 of a container",
		bytes, rail->name, limit, hard);
}

/* NULL with errno. The address that requests use is the GPU's, as for the owner's own pointers. */
static struct ibv_mr *reg_gpu(const tn_vb_rail *rail, const tn_extent *ext)
{
	if (ext->fd < 0 || !rail->dev->api->reg_dmabuf_mr) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	return rail->dev->api->reg_dmabuf_mr(rail->pd, ext->fd_offset, ext->bytes, (uintptr_t)ext->base,
					     ext->fd, access_of(ext->access));
}

/* Whatever the reason, but memory: such a device has GPU memory staged. */
static tern_status refused_gpu(const tn_vb_rail *rail)
{
	return tn_fail_errno(errno == ENOMEM ? TERN_E_NOMEM : TERN_E_UNSUPPORTED, "ibv_reg_dmabuf_mr",
			     "GPU memory on %s; it takes a driver and a NIC with dma-buf (open NVIDIA kernel "
			     "modules, Linux 5.12 or later)",
			     rail->name);
}

/* A rail that is lost has no lanes and needs no regions, and must not keep the others from theirs. */
static tern_status vb_reg(void *arg, const tn_extent *ext, void **reg, uint32_t *lkey, uint32_t *rkey)
{
	tn_vb_rail *rail = arg;
	struct ibv_mr *mr;

	if (rail->health == TN_VB_RAIL_LOST) {
		*reg = rail;
		*lkey = *rkey = 0;
		return TERN_OK;
	}
	mr = ext->gpu ? reg_gpu(rail, ext)
		      : rail->dev->api->reg_mr(rail->pd, ext->base, ext->bytes, access_of(ext->access));

	if (!mr)
		return ext->gpu ? refused_gpu(rail) : refused(rail, ext);
	atomic_fetch_add_explicit(&rail->registrations, 1, memory_order_relaxed);
	*reg = mr;
	*lkey = mr->lkey;
	*rkey = mr->rkey;
	return TERN_OK;
}

static void vb_dereg(void *arg, const tn_extent *ext, void *reg)
{
	tn_vb_rail *rail = arg;

	(void)ext;
	if (reg == rail)
		return;
	rail->dev->api->dereg_mr(reg);
	atomic_fetch_sub_explicit(&rail->registrations, 1, memory_order_relaxed);
}

const tn_registrar tn_vb_registrar = {.reg = vb_reg, .dereg = vb_dereg};
