/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What <tern/types.h> promises about element types and the version. Pure.
 * Threads: any. Tests: tests/unit/base/types_test.c.
 */
#include <tern/types.h>

#include "base/check.h"
#include "base/limits.h"

const char *tern_version(void)
{
	return TERN_VERSION_STRING;
}

static const struct {
	const char *name;
	uint8_t bytes;
} dtypes[] = {
	[TERN_F32] = {"f32", 4},   [TERN_F64] = {"f64", 8}, [TERN_F16] = {"f16", 2},
	[TERN_BF16] = {"bf16", 2}, [TERN_I8] = {"i8", 1},   [TERN_U8] = {"u8", 1},
	[TERN_I32] = {"i32", 4},   [TERN_I64] = {"i64", 8}, [TERN_U64] = {"u64", 8},
	[TERN_BOOL] = {"bool", 1},
};

uint64_t tern_dtype_bytes(tern_dtype dtype)
{
	return (unsigned)dtype < TN_COUNT_OF(dtypes) ? dtypes[dtype].bytes : 0;
}

const char *tern_dtype_name(tern_dtype dtype)
{
	return (unsigned)dtype < TN_COUNT_OF(dtypes) && dtypes[dtype].name ? dtypes[dtype].name : "?";
}
