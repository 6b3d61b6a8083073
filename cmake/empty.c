/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A shared library needs a source of its own; everything else comes from the archives of the layers.
 * Threads: none. Tests: none.
 */
typedef int tn_empty_translation_unit;
