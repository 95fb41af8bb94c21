//! What Python's texts and numbers are in templates: the expected texts are jinja2 3.1.6's.

use super::*;

const VARIABLES: &str = r#"{"m": "ΟΔΟΣ ΟΣ Σ ΑΣ'Β ΑΣ.", "d": "ǆabc ŉx ᾳα ᾲα კარგი ßa ﬁn",
    "s": "काम हिन्दी", "i": 12345678901234567890123, "z": -0,
    "recs": [{"n": 2, "g": "b"}, {"n": 1, "g": "a"}, {"n": 3, "g": "B"}]}"#;

#[test]
fn texts_and_numbers_are_pythons() {
    let cases = [
        // Cases of letters: the last sigma of a word, digraphs, letters that become several.
        (
            "{{ m.lower() }}|{{ m.title() }}|{{ m | title }}",
            "οδος ος σ ασ'β ας.|Οδος Ος Σ Ασ'Β Ας.|Οδος Οσ Σ Ασ'β Ασ.",
        ),
        (
            "{{ m.swapcase() }}|{{ m.capitalize() }}|{{ m.casefold() }}",
            "οδος ος σ ασ'β ας.|Οδος ος σ ασ'β ας.|οδοσ οσ σ ασ'β ασ.",
        ),
        (
            "{{ d.title() }}|{{ d | title }}",
            "ǅabc ʼNx ᾼα Ὰ\u{345}α კარგი Ssa Fin|Ǆabc ʼNx ΑΙα ᾺΙα Კარგი SSa FIn",
        ),
        (
            "{{ d | capitalize }}|{{ d.upper() }}|{{ d.casefold() }}|{{ 'ẞΣςıİ'.casefold() }}",
            "ǅabc ŉx ᾳα ᾲα კარგი ßa ﬁn|ǄABC ʼNX ΑΙΑ ᾺΙΑ ᲙᲐᲠᲒᲘ SSA FIN|\
             ǆabc ʼnx αια ὰια კარგი ssa fin|ssσσıi\u{307}",
        ),
        // What characters are.
        (
            "{{ s.isalpha() }} {{ 'काम'.isalnum() }} {{ s | wordcount }} {{ 'é'.isalpha() }}",
            "False False 5 True",
        ),
        (
            "{{ '²'.isdigit() }} {{ '²'.isdecimal() }} {{ '①'.isdigit() }} {{ '٣'.isdecimal() }}",
            "True False True True",
        ),
        (
            "{{ 'Ⅳ'.isnumeric() }} {{ 'Ⅳ'.isdigit() }} {{ '½'.isnumeric() }}",
            "True False True",
        ),
        // Integers.
        (
            "{{ i }}|{{ i | tojson }}|{{ i is integer }}|{{ i + 1 }}|{{ z }}|{{ z is integer }}",
            "12345678901234567890123|12345678901234567890123|True|12345678901234567890124|0|True",
        ),
        (
            "{{ '0x1A' | int(base=0) }} {{ '010' | int(5, 0) }} {{ '0_0' | int(5, 0) }} \
             {{ '0b11' | int(base=0) }} {{ '0x_1f' | int(0, 16) }} {{ '1__0' | int(7) }} {{ '-1_7' | int }} \
             {{ 'inf' | int(3) }} {{ '0x' | int(3, 16) }} {{ '1e3' | int }} {{ '1_0.5' | float }}",
            "26 10 0 3 31 7 -17 3 3 1000 10.5",
        ),
        (
            "{{ (255).bit_length() }} {{ (-8).bit_length() }} {{ (0).bit_length() }} \
             {{ true.bit_length() }} {{ (2.0).is_integer() }} {{ (2.5).is_integer() }}",
            "8 4 0 1 True False",
        ),
        (
            "{{ 99 | round(-1) }} {{ 5 | round(-1) }} {{ 15 | round(-1) }} {{ -25 | round(-1) }} \
             {{ ((-2) ** 127) | round(0) }} {{ 55.5 | round(-1) }} \
             {{ 12345678901234567890 | round(-18) }} {{ 5.5 | round((-2) ** 127) }} \
             {{ 'inf' | float | round(-400) }}",
            "100 0 20 -20 -170141183460469231731687303715884105728 60.0 12000000000000000000 0.0 \
             inf",
        ),
        (
            "{{ (-170141183460469231731687303715884105727) in range(2, 5) }} \
             {{ (-170141183460469231731687303715884105727 - 1) in range(0, -5, -1) }} \
             {{ range(5, 10, 2 ** 126)[0:] | list }} {{ 3 in range(5, 0, -2) }}",
            "False False [5] True",
        ),
        // Formats and searches.
        (
            "{{ '{:5}'.format(true) }}|{{ '{}'.format(true) }}|{{ '{:015,}'.format(1234567) }}|\
             {{ '{:016,}'.format(1234567) }}|{{ '{:_x}'.format(1234567) }}|\
             {{ '{:04,}'.format(0) }}|{{ '{:014,.2f}'.format(-1234.5) }}|\
             {{ '{:013_b}'.format(77) }}|{{ '{:0=9,}'.format(1234) }}",
            "    1|True|000,001,234,567|0,000,001,234,567|12_d687|0,000|-00,001,234.50|\
             000_0100_1101|0,001,234",
        ),
        (
            "{{ 'abc'.find('', 2, 1) }} {{ 'abc'.count('', 2, 1) }} {{ 'abc'.find('', 2, 2) }} \
             {{ 'abc'.count('', 2, 2) }} {{ 'abc'.startswith('', 2, 1) }} \
             {{ 'abc'.rfind('', -1, 1) }}",
            "-1 0 2 1 False -1",
        ),
        (
            "{{ strftime_now('%G-W%V %g %q %-q %Ey %Od %Ed %-OY %EE %E') }}",
            "2026-W03 26 %q %-q 26 15 %Ed %-OY %EE %E",
        ),
        // The pairs of `groupby` have names.
        (
            "{% for g in recs | groupby('g') %}{{ g.grouper }}:{{ g.list | length }}:\
             {{ g['grouper'] }}:{{ g[0] }} {% endfor %}\
             {{ recs | groupby('g') | map(attribute='grouper') | join }}",
            "a:1:a:a b:2:b:b ab",
        ),
    ];
    for (source, expected) in cases {
        assert_eq!(text(source, VARIABLES), expected, "{source}");
    }
}

/// `safe` and `escape` make `Markup` of a text, which escapes what is added to it.
#[test]
fn markup_and_attributes_are_pythons() {
    let variables = r#"{"u": "<x&'\"", "n": 5, "f": 2.5}"#;
    for (source, expected) in [
        (
            r##"{{ '<b>' | safe + u }}|{{ u + ('<i>' | safe) }}|{{ ('<b>' | safe) ~ u }}|{{ (u | e) + '<' }}"##,
            r##"<b>&lt;x&amp;&#39;&#34;|&lt;x&amp;&#39;&#34;<i>|<b><x&'"|&lt;x&amp;&#39;&#34;&lt;"##,
        ),
        (
            r##"{{ ('%s <%s>' | safe) % (u, 1) }}|{{ ('{} <{}>' | safe).format(u, 1) }}|{{ ('<' | safe).join([u, 'a' | safe]) }}"##,
            r##"&lt;x&amp;&#39;&#34; <1>|&lt;x&amp;&#39;&#34; <1>|&lt;x&amp;&#39;&#34;<a"##,
        ),
        (
            r##"{{ ('<a>&' | safe).replace('a', u) }}|{{ ('a<' | safe) * 2 + u }}|{{ ('a<b' | safe)[1:] + u }}|{{ ('a <' | safe).split()[1] + u }}"##,
            r##"<&lt;x&amp;&#39;&#34;>&|a<a<&lt;x&amp;&#39;&#34;|<b&lt;x&amp;&#39;&#34;|<&lt;x&amp;&#39;&#34;"##,
        ),
        (
            r##"{{ [u | e, 'x' | safe] }}|{{ (u | safe) is escaped }}|{{ u is escaped }}|{{ [u | safe, u] | join('<') }}|{{ (u | safe) == u }}"##,
            r##"[Markup('&lt;x&amp;&#39;&#34;'), Markup('x')]|True|False|<x&'"<<x&'"|True"##,
        ),
        (
            r##"{{ (u | e | e) }}|{{ u | e | forceescape }}|{{ (u | safe | string) + u }}|{{ (u | safe | upper) + u }}|{{ (u | safe | replace('x', 'y')) + u }}|{{ (u | safe | trim | first) + u }}"##,
            r##"&lt;x&amp;&#39;&#34;|&amp;lt;x&amp;amp;&amp;#39;&amp;#34;|<x&'"&lt;x&amp;&#39;&#34;|<X&'"&lt;x&amp;&#39;&#34;|<y&'"<x&'"|<<x&'""##,
        ),
        (
            "{{ 'x' + u + ('<' | safe) + u + 'y' }}|{{ 'a' + ('b' | safe) + 'c' + u }}|{{ ('l1\nl2' | safe | indent(1)) + u }}|{{ ('abcdefghij<' | safe | truncate(5, true, '<')) }}",
            "x&lt;x&amp;&#39;&#34;<&lt;x&amp;&#39;&#34;y|abc&lt;x&amp;&#39;&#34;|l1\n l2&lt;x&amp;&#39;&#34;|abcd&lt;",
        ),
        (
            r##"{{ n.real }} {{ n.imag }} {{ n.numerator }} {{ n.denominator }} {{ f.real }} {{ f.imag }} {{ true.real }} {{ n.conjugate() }} {{ f.conjugate() }} {{ n.bit_count() }} {{ f.numerator is defined }}"##,
            r##"5 0 5 1 2.5 0.0 1 5 2.5 2 False"##,
        ),
        (
            "{{ 'Ab Cd'.istitle() }} {{ 'AB'.istitle() }} {{ 'a'.istitle() }} {{ '1A'.istitle() }} {{ ''.istitle() }} {{ 'ǅa Ǆ'.istitle() }} {{ 'a b'.isprintable() }} {{ 'a\nb'.isprintable() }} {{ '\u{2028}'.isprintable() }}",
            r##"True False False True False True True False False"##,
        ),
        (
            r##"{{ self }} {{ self is defined }} {{ self.x is defined }} {% set self = 2 %}{{ self }} {{ dict.fromkeys(['a', 'b', 'a']) }} {{ dict.fromkeys('ab', 1) }} {{ dict.x is defined }}"##,
            r##"<TemplateReference None> True False 2 {'a': None, 'b': None} {'a': 1, 'b': 1} False"##,
        ),
    ] {
        assert_eq!(text(source, variables), expected, "{source}");
    }
}

#[test]
fn what_python_refuses_or_has_larger_integers_for_is_refused() {
    for (source, kind) in [
        ("{{ '{} {0}'.format(1) }}", Kind::Evaluation),
        ("{{ '{0} {}'.format(1) }}", Kind::Evaluation),
        ("{{ '{:,x}'.format(5) }}", Kind::Evaluation),
        ("{{ 'a'.encode() }}", Kind::Unsupported),
        (r"{{ '\N{DASH}' }}", Kind::Unsupported),
        ("{{ self() }}", Kind::Evaluation),
        ("{{ 1e100 | int }}", Kind::Limit),
        ("{{ '1e100' | int }}", Kind::Limit),
        ("{{ ('9' * 50) | int }}", Kind::Limit),
        ("{{ ((-2) ** 127) | round(-1) }}", Kind::Limit),
        (
            "{{ (2 ** 126 + (2 ** 126 - 1)) | round(-38) }}",
            Kind::Limit,
        ),
    ] {
        let refused = render(source, "{}");
        assert_eq!(refused.map_err(|(kind, _)| kind), Err(kind), "{source}");
    }
    let json = format!(r#"{{"n": "1", "m": 1{}}}"#, "0".repeat(39));
    let fault = read_json(&mut Meter::new(0, None), &json).unwrap_err();
    assert_eq!(fault.kind, Kind::Limit);
}

#[test]
fn large_integers_of_json_are_found_among_other_numbers() {
    let variables = r#"{"a\"1\\": 1, "12345678901234567890123": [1.5, -2e3, 7, 0,
        170141183460469231731687303715884105727, "99999999999999999999", 3,
        -170141183460469231731687303715884105728, 18446744073709551615, 0.0000000000000000000001]}"#;
    assert_eq!(
        text("{{ d | tojson }}", &format!(r#"{{"d": {variables}}}"#)),
        "{\"a\\\"1\\\\\": 1, \"12345678901234567890123\": [1.5, -2000.0, 7, 0, \
         170141183460469231731687303715884105727, \"99999999999999999999\", 3, \
         -170141183460469231731687303715884105728, 18446744073709551615, 1e-22]}"
    );
}
