# SPDX-License-Identifier: Apache-2.0
"""What inference does: read rows, of keys that may be unknown.

    python3 lookup.py HOST:PORT
"""
import sys

import tern

with tern.Context('frontend') as ctx:
    items = ctx.tables(sys.argv[1]).open('items')
    rows, found = items.pull([17, 5, 2**40], unknown='zero', found=True)
    for key, row, known in zip((17, 5, 2**40), rows, found):
        print(key, 'known' if known else 'unknown', round(float(row[0]), 2))
