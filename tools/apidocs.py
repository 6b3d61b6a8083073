#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Manual pages (section 3) and the API reference, made from the comments of the public headers: the only source.

Usage: apidocs.py INCLUDE_FOLDER VERSION DATE [--man .../man3] [--html FOLDER] [--list]

A page speaks of the functions that share a comment and has the name of the first; the others lead to it. A page
tern_<header>.h per header has what the header says first, its types and its constants. --list: the names of the pages.
Tests: tests/docs/api_test.py.
"""
import argparse
import html
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import capi  # noqa: E402
import csource  # noqa: E402

LIBRARIES = {'graph': 'libtern-graph', 'session': 'libtern-graph', 'http': 'libtern-http'}
NAME_LENGTH = 90


def blocks(words):
    """A comment as (is an example or table, lines) blocks: what is indented by two blanks or more stays as it is."""
    found = []
    for line in words.split('\n'):
        literal = line.startswith('  ')
        if not line.strip():
            if found and found[-1][1]:
                found.append((found[-1][0], []))
        elif found and found[-1][0] == literal:
            found[-1][1].append(line)
        else:
            found.append((literal, [line]))
    return [(literal, lines) for literal, lines in found if lines]


def summary(words, name):
    """The first sentence, short enough for a NAME line; where that says nothing by itself, what the name says."""
    flat = ' '.join(words.split())
    flat = re.split(r'(?<=[a-z0-9)"])[.:;] ', flat + ' ', maxsplit=1)[0].strip().rstrip('.:;')
    if len(flat) < 4 or re.match(r'(TERN_[EA]|NULL|\w+->)', flat):
        return name.replace('tern_', '').replace('_', ' ')
    if len(flat) > NAME_LENGTH:
        flat = flat[:NAME_LENGTH].rsplit(' ', 1)[0].rstrip(' ,:;(')
    return flat[0].lower() + flat[1:] if re.match(r'[A-Z][a-z ]', flat) else flat


# ---- manual pages ------------------------------------------------------------------------------------------------

def escape(text):
    text = text.replace('\\', '\\e').replace('-', '\\-')
    return re.sub(r"^([.'])", r'\\&\1', text)


def verbatim(text):
    lines = [escape(line.rstrip().expandtabs(8)) for line in text.split('\n')]
    return ['.nf'] + lines + ['.fi']


def prose(words):
    """Paragraphs, with functions, constants and what stands in backticks in bold."""
    out = []
    for literal, lines in blocks(words):
        if literal:
            out += ['.PP', '.RS 4'] + verbatim('\n'.join(lines)) + ['.RE']
            continue
        out.append('.PP')
        for line in lines:
            line = escape(line.strip())
            line = re.sub(r'`([^`]+)`', r'\\fB\1\\fR', line)
            line = re.sub(r'(?<![\w.])(tern_\w+|TERN_\w+|_[A-Z][A-Z_]+)\b', r'\\fB\1\\fR', line)
            out.append(re.sub(r"^([.'])", r'\\&\1', line))
    return out


def tidy(lines):
    """No paragraph begins twice."""
    return [line for i, line in enumerate(lines) if line != '.PP' or not (i and lines[i - 1].startswith(('.SH', '.PP')))]


class Pages:
    def __init__(self, headers, version, date):
        self.headers, self.version, self.date = headers, version, date

    def head(self, name, names, what):
        return ['.\\" SPDX-License-Identifier: Apache-2.0', '.\\" Made from the header by tools/apidocs.py: do not edit.',
                f'.TH {name.upper()} 3 {self.date} "tern {self.version}" "Library Functions"', '.SH NAME',
                ', '.join(escape(n) for n in names) + ' \\- ' + escape(what)]

    def tail(self, header, own):
        library = LIBRARIES.get(header.name, 'libtern')
        others = ['tern (1)'] + ([f'tern_{header.name}.h (3)'] if not own else [])
        others += ['tern_status.h (3)'] if not own and header.name != 'status' else []
        out = ['.SH LIBRARY', f'{escape(library)} ({escape("-l" + library[3:])}, pkg\\-config {escape(library[3:])})',
               '.SH SEE ALSO']
        return out + [f'.BR {escape(o)}{" ," if o is not others[-1] else ""}'.replace(') ,', '),') for o in others]

    def function_page(self, header, group):
        functions = group.of('function', 'inline')
        names = [d.name for d in functions]
        out = self.head(names[0], names, summary(group.comment, names[0]))
        out += ['.SH SYNOPSIS', '.nf', f'.B #include <tern/{header.name}.h>', '.fi']
        for declaration in functions:
            text = declaration.text
            if declaration.kind == 'inline':
                text = text[:text.index('{')].rstrip() + ';'
            out += ['.PP'] + verbatim(dedent(text))
        if group.comment:
            out += ['.SH DESCRIPTION'] + prose(group.comment)[1:]
        types = self.types_of(header, functions)
        if types:
            out.append('.SH TYPES')
            for comment, declaration in types:
                out += prose(comment) + ['.PP'] + verbatim(declaration.text)
        if any(d.text.startswith('tern_status ') for d in functions):
            out += ['.SH RETURN VALUE', '.B TERN_OK',
                    'or an error, whose cause, limit and remedy', '.BR tern_detail (3)', 'has as text.']
        return tidy(out + self.tail(header, False))

    def types_of(self, header, functions):
        """Structs, enums and callbacks of the same header that the functions take."""
        words = set(re.findall(r'\w+', ' '.join(d.bare() for d in functions)))
        return [(g.comment, d) for g in header.groups for d in g.of('struct', 'enum', 'callback') if d.name in words]

    def header_page(self, header):
        name = f'tern_{header.name}.h'
        out = self.head(name, [name], summary(header.intro, name))
        out += ['.SH SYNOPSIS', '.nf', f'.B #include <tern/{header.name}.h>', '.fi', '.SH DESCRIPTION']
        out += prose(header.intro)[1:]
        for title, kinds in (('CONSTANTS', ('macro',)), ('TYPES', ('type', 'struct', 'enum', 'callback'))):
            groups = [(g.comment if not g.of('function') else '', g.of(*kinds)) for g in header.groups if g.of(*kinds)]
            if groups:
                out.append(f'.SH {title}')
            for comment, declarations in groups:
                out += (prose(comment) if comment else []) + ['.PP']
                out += verbatim('\n'.join(d.text for d in declarations))
        functions = [d.name for g in header.groups for d in g.of('function', 'inline')]
        if functions:
            out.append('.SH FUNCTIONS')
            out += [f'.BR {f} (3){"," if f is not functions[-1] else ""}' for f in functions]
        return tidy(out + self.tail(header, True))

    def all(self):
        """name -> lines; pages that lead to another have one line."""
        pages = {}
        for header in self.headers:
            pages[f'tern_{header.name}.h'] = self.header_page(header)
            for group in header.groups:
                names = [d.name for d in group.of('function', 'inline')]
                for name in names[1:]:
                    pages[name] = [f'.so man3/{names[0]}.3']
                if names:
                    pages[names[0]] = self.function_page(header, group)
        return pages


def dedent(text):
    """Continuation lines of a declaration are aligned by tabs of 8."""
    return re.sub(r'\s*\n\s+', '\n    ', csource.blank_comments(text).strip())


# ---- the reference -----------------------------------------------------------------------------------------------

STYLE = '''body{max-width:60em;margin:2em auto;padding:0 1em;font:16px/1.5 system-ui,sans-serif;color:#222;background:#fff}
pre{background:#f4f4f2;padding:.7em 1em;overflow-x:auto;tab-size:8;font-size:14px;line-height:1.4}
h3{margin:2em 0 .3em;font-family:monospace}a{color:#04c}nav{columns:3}
@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}pre{background:#262626}a{color:#8bf}}'''


def html_page(title, body):
    return (f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
            f'<style>{STYLE}</style></head>\n<body>\n' + '\n'.join(body) + '\n</body></html>\n')


class Reference:
    def __init__(self, headers, version):
        self.headers, self.version = headers, version
        self.where = {d.name: f'{h.name}.html#{d.name}' for h in headers for g in h.groups for d in g.declarations}

    def linked(self, text):
        return re.sub(r'\b(?:tern|TERN)_\w+', lambda m: f'<a href="{self.where[m.group()]}">{m.group()}</a>'
                      if m.group() in self.where else m.group(), html.escape(text, quote=False))

    def prose(self, words):
        out = []
        for literal, lines in blocks(words):
            text = self.linked('\n'.join(lines))
            out.append(f'<pre>{text}</pre>' if literal else '<p>' + re.sub(r'`([^`]+)`', r'<code>\1</code>', text) + '</p>')
        return out

    def header(self, header):
        body = [f'<p><a href="index.html">tern {self.version}</a></p>', f'<h1>&lt;tern/{header.name}.h&gt;</h1>']
        body += self.prose(header.intro)
        names = [d.name for d in header.all('function', 'inline')]
        body += ['<nav>'] + [f'<a href="#{n}">{n}</a><br>' for n in names] + ['</nav>']
        section = ''
        for group in header.groups:
            if group.section != section:
                section = group.section
                body.append(f'<h2>{html.escape(section)}</h2>')
            anchors = ''.join(f'<a id="{d.name}"></a>' for d in group.declarations)
            shown = group.of('function', 'inline', 'struct', 'enum', 'callback')
            body.append(f'<h3>{anchors}{", ".join(d.name for d in shown)}</h3>' if shown else anchors)
            body.append('<pre>' + self.linked('\n'.join(d.text for d in group.declarations)) + '</pre>')
            body += self.prose(group.comment)
        return html_page(f'tern/{header.name}.h', body)

    def index(self):
        body = [f'<h1>tern {self.version}: reference</h1>', '<p>Made from the headers in <code>include/tern</code>.</p>']
        for header in self.headers:
            body.append(f'<h2><a href="{header.name}.html">&lt;tern/{header.name}.h&gt;</a></h2>')
            body.append(f'<p>{html.escape(summary(header.intro, header.name))}</p><nav>')
            body += [f'<a href="{self.where[d.name]}">{d.name}</a><br>' for d in header.all('function', 'inline')]
            body.append('</nav>')
        return html_page('tern: reference', body)


def write(folder, pages):
    """Exactly these files: what an older header had goes."""
    os.makedirs(folder, exist_ok=True)
    for name in set(os.listdir(folder)) - set(pages):
        os.remove(os.path.join(folder, name))
    for name, text in pages.items():
        with open(os.path.join(folder, name), 'w', encoding='utf-8') as file:
            file.write(text)


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split('\n')[2][7:])
    parser.add_argument('include')
    parser.add_argument('version')
    parser.add_argument('date')
    parser.add_argument('--man')
    parser.add_argument('--html')
    parser.add_argument('--list', action='store_true')
    args = parser.parse_args()
    headers = capi.load(args.include)
    pages = Pages(headers, args.version, args.date).all()
    if args.list:
        print('\n'.join(sorted(pages)))
    if args.man:  # a folder man3, which pages that lead to another name
        write(args.man, {f'{name}.3': '\n'.join(lines) + '\n' for name, lines in pages.items()})
    if args.html:
        reference = Reference(headers, args.version)
        write(args.html, {'index.html': reference.index(), **{f'{h.name}.html': reference.header(h) for h in headers}})


if __name__ == '__main__':
    main()
