# SPDX-License-Identifier: Apache-2.0
"""The public headers as data: what each declares, and the comment that speaks of it.

The headers' style is relied upon: a comment stands right above what it speaks of, and speaks of all declarations up to
the next comment or empty line. Who uses it: tools/apidocs.py (manual pages, reference), tools/abi.py (binary interface).
Tests: tests/tools/test_capi.py.
"""
import glob
import os
import re

import csource


class Declaration:
    """kind: function, inline, struct, enum, callback, macro or type. text: as in the header, with inner comments."""

    def __init__(self, kind, name, text):
        self.kind, self.name, self.text = kind, name, text

    def bare(self):
        """On one line, without comments."""
        return ' '.join(csource.blank_comments(self.text).split())


class Group:
    """Declarations that share a comment ('' if they have none)."""

    def __init__(self, comment, section):
        self.comment, self.section, self.declarations = comment, section, []

    def of(self, *kinds):
        return [d for d in self.declarations if d.kind in kinds]


class Header:
    def __init__(self, name, text):
        self.name = name  # ctx
        self.intro = ''
        self.groups = []
        self._read(text)

    def all(self, *kinds):
        return [d for g in self.groups for d in g.of(*kinds)]

    def _read(self, text):
        text = text.replace('#ifdef __cplusplus\nextern "C" {\n#endif\n', '').replace(
            '#ifdef __cplusplus\n}\n#endif\n', '')
        at, comment, section, group = 0, None, '', None
        while True:
            gap = re.compile(r'\s*').match(text, at)
            if gap.end() == len(text):
                return
            if '\n\n' in gap.group() and group is not None:
                group = None
            at = gap.end()
            if text.startswith('/*', at):
                end = text.index('*/', at) + 2
                words, at, group = plain(text[at:end]), end, None
                first, _, rest = words.partition('\n')
                if heading(first) and rest:
                    section, words = heading(first), rest.strip('\n')
                if re.match(r'\n\s*\n', text[end:]) or heading(words):
                    comment = None  # speaks of no declaration
                    if heading(words):
                        section = heading(words)
                    elif not self.intro:
                        self.intro = words
                    continue
                if not self.intro and not words.startswith('SPDX') and text.startswith('\n#ifndef TERN_', end):
                    self.intro = words
                else:
                    comment = words if not words.startswith('SPDX') else None
                continue
            end = statement_end(text, at)
            declaration = declare(text[at:end])
            at = end
            if declaration is None:
                continue
            if group is None:
                group = Group(comment or '', section)
                self.groups.append(group)
            comment = None
            group.declarations.append(declaration)


def plain(comment):
    """The words of a comment, without its frame; indentation of examples stays."""
    lines = comment[2:-2].split('\n')
    lines = [re.sub(r'^\s*\* ?', '', line) if re.match(r'\s*\*', line) else line.strip() for line in lines]
    return '\n'.join(line.rstrip() for line in lines).strip('\n').strip()


def heading(words):
    found = re.fullmatch(r'-{4}\s*(.*?)\s*-{4,}', words.strip())
    return found.group(1) if found else None


def statement_end(text, at):
    """After a directive with its continuations, or a declaration with a comment that trails on its line."""
    if text[at] == '#':
        end = at
        while True:
            end = text.find('\n', end)
            if end < 0:
                return len(text)
            if text[end - 1] != '\\':
                return end
            end += 1
    clean, depth, end = csource.blank_comments(text[at:]), 0, 0
    inline = clean.startswith('static inline')
    while True:
        char = clean[end]
        depth += (char in '{(') - (char in '})')
        end += 1
        if depth == 0 and (char == ';' and not inline or char == '}' and inline):
            break
    trailing = re.compile(r'[ \t]*/\*[^\n]*?\*/(?=\n)').match(text, at + end)
    return trailing.end() if trailing else at + end


def declare(text):
    if text.startswith('#'):
        found = re.match(r'#define (TERN_\w+)\(?', text)
        if not found or re.fullmatch(r'#define TERN_\w+_H', text.strip()):
            return None
        return Declaration('macro', found.group(1), text)
    bare = ' '.join(csource.blank_comments(text).split())
    if bare.startswith('static inline'):
        return Declaration('inline', re.search(r'(\w+)\(', bare).group(1), text)
    for kind in ('struct', 'enum', 'union'):
        found = re.match(rf'typedef {kind} \w+ \{{.*\}} (\w+);', bare)
        if found:
            return Declaration('enum' if kind == 'enum' else 'struct', found.group(1), text)
    found = re.match(r'(?:struct|enum) (\w+) \{', bare)
    if found:
        return Declaration(bare.split()[0], found.group(1), text)
    found = re.match(r'typedef .*\(\*(\w+)\)\(', bare)
    if found:
        return Declaration('callback', found.group(1), text)
    if bare.startswith('typedef') or re.match(r'(?:struct|enum) \w+;', bare):
        return Declaration('type', re.search(r'(\w+)(?:\[\w+\])?;', bare).group(1), text)
    found = re.match(r'[^(]*?(\w+)\(', bare)
    return Declaration('function', found.group(1), text) if found else Declaration('type', bare, text)


def members(declaration):
    """Of a struct or enum: (what stands before the name, name, what stands after it) of each member."""
    body = declaration.bare()
    body = body[body.index('{') + 1:body.rindex('}')]
    if declaration.kind == 'enum':
        names = [part.split('=')[0].strip() for part in split(body, ',')]
        return [('', name, '') for name in names if re.fullmatch(r'\w+', name)]
    found = []
    for field in split(body, ';'):
        first = None
        for part in split(field, ','):
            pointer = re.match(r'(.*?\(\*)(\w+)(\).*)$', part)
            match = pointer or re.match(r'(.*?)(\w+)((?:\[\w+\])*)$', part.strip())
            before = match.group(1).strip()
            if first is None:
                first = re.sub(r'[\s*]+$', '', before)
            elif not pointer:
                before = f'{first} {before}'.strip()
            found.append((before, match.group(2), match.group(3)))
    return found


def split(text, separator):
    """At the separators that are in no brackets; without empty parts."""
    parts, depth, part = [], 0, ''
    for char in text:
        depth += (char in '({[') - (char in ')}]')
        if char == separator and depth == 0:
            parts.append(part)
            part = ''
        else:
            part += char
    return [p.strip() for p in parts + [part] if p.strip()]


def load(include):
    """All public headers of an include folder, by name."""
    headers = []
    for path in sorted(glob.glob(os.path.join(include, 'tern', '*.h'))):
        with open(path, encoding='utf-8') as file:
            headers.append(Header(os.path.basename(path)[:-2], file.read()))
    return headers
