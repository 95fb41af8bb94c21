//! Values as text: Python's `str` and `repr`, and `json.dumps` as transformers' `tojson` calls it.

use super::fault::{Result, evaluation};
use super::limits::Meter;
use super::names;
use super::text::{Builder, Text, short};
use super::value::{Dict, Value, View, order};
use std::cmp::Ordering;
use std::fmt::Write;

/// Python's `str(value)`. Texts stay as they are.
pub fn string(meter: &mut Meter<'_>, value: &Value) -> Result<Text> {
    match value {
        Value::Text(text) => Ok(text.clone()),
        Value::Undefined(_) => Ok(short("")),
        other => repr(meter, other),
    }
}

/// Appends Python's `str(value)`.
pub fn print(meter: &mut Meter<'_>, out: &mut Builder, value: &Value) -> Result<()> {
    match value {
        Value::Text(text) => out.push_text(meter, text),
        Value::Undefined(_) => Ok(()),
        other => {
            let text = repr(meter, other)?;
            out.push_text(meter, &text)
        }
    }
}

/// Python's `repr(value)`.
pub fn repr(meter: &mut Meter<'_>, value: &Value) -> Result<Text> {
    let mut writer = Writer::new();
    writer.repr(meter, value)?;
    Ok(Text::of(writer.text, writer.templates))
}

/// The text that is written, and whether all texts in it are the template's.
struct Writer {
    text: String,
    templates: bool,
}

impl Writer {
    fn new() -> Self {
        Writer {
            text: String::new(),
            templates: true,
        }
    }

    fn put(&mut self, meter: &mut Meter<'_>, text: &str) -> Result<()> {
        meter.write(&mut self.text, text)
    }

    fn repr(&mut self, meter: &mut Meter<'_>, value: &Value) -> Result<()> {
        meter.step()?;
        match value {
            Value::Undefined(_) => self.put(meter, "Undefined"),
            Value::None => self.put(meter, "None"),
            Value::Bool(b) => self.put(meter, if *b { "True" } else { "False" }),
            Value::Int(i) => self.put(meter, &i.to_string()),
            Value::Float(f) => self.put(meter, &float(*f)),
            Value::Text(text) => {
                self.templates &= text.is_templates();
                if !text.is_markup() {
                    return self.quoted(meter, text.as_str());
                }
                self.put(meter, "Markup(")?;
                self.quoted(meter, text.as_str())?;
                self.put(meter, ")")
            }
            Value::List(seq) => self.sequence(meter, "[", seq.items.iter(), "]"),
            Value::Tuple(seq) if seq.items.len() == 1 => {
                self.sequence(meter, "(", seq.items.iter(), ",)")
            }
            Value::Tuple(seq) => self.sequence(meter, "(", seq.items.iter(), ")"),
            Value::Dict(dict) => self.dict(meter, dict),
            Value::View(dict, View::Keys) => {
                let keys = dict.entries().iter().map(|(key, _)| key);
                self.sequence(meter, "dict_keys([", keys, "])")
            }
            Value::View(dict, View::Values) => {
                let values = dict.entries().iter().map(|(_, value)| value);
                self.sequence(meter, "dict_values([", values, "])")
            }
            Value::View(dict, View::Items) => {
                self.put(meter, "dict_items([")?;
                for (i, (key, value)) in dict.entries().iter().enumerate() {
                    self.put(meter, if i > 0 { ", (" } else { "(" })?;
                    self.repr(meter, key)?;
                    self.put(meter, ", ")?;
                    self.repr(meter, value)?;
                    self.put(meter, ")")?;
                }
                self.put(meter, "])")
            }
            Value::Range(range) => {
                let (start, stop) = (range.start, range.stop);
                let text = match range.step {
                    1 => format!("range({start}, {stop})"),
                    step => format!("range({start}, {stop}, {step})"),
                };
                self.put(meter, &text)
            }
            Value::Function(names::SELF) => self.put(meter, "<TemplateReference None>"),
            // Python also writes an address here.
            other => self.put(meter, &format!("<{}>", other.type_name())),
        }
    }

    fn sequence<'v>(
        &mut self,
        meter: &mut Meter<'_>,
        open: &str,
        items: impl Iterator<Item = &'v Value>,
        close: &str,
    ) -> Result<()> {
        self.put(meter, open)?;
        for (i, item) in items.enumerate() {
            if i > 0 {
                self.put(meter, ", ")?;
            }
            self.repr(meter, item)?;
        }
        self.put(meter, close)
    }

    fn dict(&mut self, meter: &mut Meter<'_>, dict: &Dict) -> Result<()> {
        self.put(meter, "{")?;
        for (i, (key, value)) in dict.entries().iter().enumerate() {
            if i > 0 {
                self.put(meter, ", ")?;
            }
            self.repr(meter, key)?;
            self.put(meter, ": ")?;
            self.repr(meter, value)?;
        }
        self.put(meter, "}")
    }

    /// Writes `text` in single quotes. Uses double quotes if it contains single quotes and no
    /// double quotes.
    fn quoted(&mut self, meter: &mut Meter<'_>, text: &str) -> Result<()> {
        meter.look_at(text.len())?;
        let double = text.contains('\'') && !text.contains('"');
        let quote = if double { "\"" } else { "'" };
        self.put(meter, quote)?;
        self.escaped(meter, text, |c, escape| {
            match c {
                '\\' => escape.push_str("\\\\"),
                '\'' if !double => escape.push_str("\\'"),
                '\n' => escape.push_str("\\n"),
                '\r' => escape.push_str("\\r"),
                '\t' => escape.push_str("\\t"),
                ' '..='~' => return false,
                c if is_printable(c) => return false,
                c => {
                    let code = u32::from(c);
                    let _ = match code {
                        0..0x100 => write!(escape, "\\x{code:02x}"),
                        0x100..0x1_0000 => write!(escape, "\\u{code:04x}"),
                        _ => write!(escape, "\\U{code:08x}"),
                    };
                }
            }
            true
        })?;
        self.put(meter, quote)
    }

    /// Writes `text`. `escape` writes what stands for a character, or says that the character
    /// stays.
    fn escaped(
        &mut self,
        meter: &mut Meter<'_>,
        text: &str,
        escape: impl Fn(char, &mut String) -> bool,
    ) -> Result<()> {
        let mut plain = 0;
        let mut code = String::new();
        for (at, c) in text.char_indices() {
            if escape(c, &mut code) {
                self.put(meter, &text[plain..at])?;
                self.put(meter, &code)?;
                code.clear();
                plain = at + c.len_utf8();
            }
        }
        self.put(meter, &text[plain..])
    }
}

/// Python's `str.isprintable` of one character. It is true for characters that Rust's `Debug`
/// leaves as they are after another character. The two may know different versions of Unicode.
pub fn is_printable(c: char) -> bool {
    match c {
        ' '..='~' => true,
        c if c.is_control() => false,
        c => {
            let mut pair = [0; 5];
            pair[0] = b'a';
            let len = 1 + c.encode_utf8(&mut pair[1..]).len();
            match std::str::from_utf8(&pair[..len]) {
                Ok(pair) => pair.escape_debug().nth(1) != Some('\\'),
                Err(_) => false,
            }
        }
    }
}

/// Python's `repr` of a float: the fewest digits from which the same float is read.
pub fn float(f: f64) -> String {
    if f.is_nan() {
        return "nan".into();
    }
    if f.is_infinite() {
        return if f > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{f:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{f}");
        return match plain.contains('.') {
            true => plain,
            false => plain + ".0",
        };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// The options of `json.dumps`.
#[derive(Debug)]
pub struct Json {
    /// The indent of a level. Without it, everything is on one line.
    pub indent: Option<Text>,
    /// Between elements.
    pub comma: Text,
    /// Between a key and its value.
    pub colon: Text,
    /// Whether to write only ASCII.
    pub ascii: bool,
    /// Whether to sort keys.
    pub sort: bool,
}

/// Python's `json.dumps`.
pub fn json(meter: &mut Meter<'_>, value: &Value, options: &Json) -> Result<Text> {
    let mut writer = Writer::new();
    writer.templates = options.comma.is_templates() && options.colon.is_templates();
    if let Some(indent) = &options.indent {
        writer.templates &= indent.is_templates();
    }
    writer.json(meter, value, options, 0)?;
    Ok(Text::of(writer.text, writer.templates))
}

impl Writer {
    fn json(
        &mut self,
        meter: &mut Meter<'_>,
        value: &Value,
        options: &Json,
        level: usize,
    ) -> Result<()> {
        meter.step()?;
        match value {
            Value::None => self.put(meter, "null"),
            Value::Bool(b) => self.put(meter, if *b { "true" } else { "false" }),
            Value::Int(i) => self.put(meter, &i.to_string()),
            Value::Float(f) => self.put(meter, &json_float(*f)),
            Value::Text(text) => self.json_text(meter, text, options),
            Value::List(seq) | Value::Tuple(seq) => {
                if seq.items.is_empty() {
                    return self.put(meter, "[]");
                }
                self.put(meter, "[")?;
                for (i, item) in seq.items.iter().enumerate() {
                    self.separate(meter, options, level + 1, i > 0)?;
                    self.json(meter, item, options, level + 1)?;
                }
                self.end(meter, options, level)?;
                self.put(meter, "]")
            }
            Value::Dict(dict) => {
                if dict.entries().is_empty() {
                    return self.put(meter, "{}");
                }
                let in_order;
                let entries = match options.sort {
                    true => {
                        in_order = sorted(meter, dict.entries(), |(key, _)| key, false)?;
                        in_order.as_slice()
                    }
                    false => dict.entries(),
                };
                self.put(meter, "{")?;
                for (i, (key, value)) in entries.iter().enumerate() {
                    self.separate(meter, options, level + 1, i > 0)?;
                    self.json_key(meter, key, options)?;
                    self.put(meter, options.colon.as_str())?;
                    self.json(meter, value, options, level + 1)?;
                }
                self.end(meter, options, level)?;
                self.put(meter, "}")
            }
            Value::Undefined(missing) => evaluation(missing.sentence()),
            other => evaluation(format!("{} has no JSON", other.of_type())),
        }
    }

    fn separate(
        &mut self,
        meter: &mut Meter<'_>,
        options: &Json,
        level: usize,
        comma: bool,
    ) -> Result<()> {
        if comma {
            self.put(meter, options.comma.as_str())?;
        }
        match options.indent {
            Some(_) => self.line(meter, options, level),
            None => Ok(()),
        }
    }

    fn end(&mut self, meter: &mut Meter<'_>, options: &Json, level: usize) -> Result<()> {
        match options.indent {
            Some(_) => self.line(meter, options, level),
            None => Ok(()),
        }
    }

    fn line(&mut self, meter: &mut Meter<'_>, options: &Json, level: usize) -> Result<()> {
        self.put(meter, "\n")?;
        for _ in 0..level {
            let indent = options.indent.as_ref().map_or("", Text::as_str);
            self.put(meter, indent)?;
        }
        Ok(())
    }

    fn json_key(&mut self, meter: &mut Meter<'_>, key: &Value, options: &Json) -> Result<()> {
        let text = match key {
            Value::Text(text) => return self.json_text(meter, text, options),
            Value::None => "null".to_owned(),
            Value::Bool(b) => b.to_string(),
            Value::Int(i) => i.to_string(),
            Value::Float(f) => json_float(*f),
            other => return evaluation(format!("{} is no key of JSON", other.of_type())),
        };
        self.put(meter, &format!("\"{text}\""))
    }

    fn json_text(&mut self, meter: &mut Meter<'_>, text: &Text, options: &Json) -> Result<()> {
        self.templates &= text.is_templates();
        self.put(meter, "\"")?;
        self.escaped(meter, text.as_str(), |c, escape| {
            match c {
                '"' => escape.push_str("\\\""),
                '\\' => escape.push_str("\\\\"),
                '\n' => escape.push_str("\\n"),
                '\r' => escape.push_str("\\r"),
                '\t' => escape.push_str("\\t"),
                '\u{8}' => escape.push_str("\\b"),
                '\u{c}' => escape.push_str("\\f"),
                c if c < ' ' || (options.ascii && c > '~') => {
                    let mut units = [0; 2];
                    for unit in c.encode_utf16(&mut units) {
                        let _ = write!(escape, "\\u{unit:04x}");
                    }
                }
                _ => return false,
            }
            true
        })?;
        self.put(meter, "\"")
    }
}

fn json_float(f: f64) -> String {
    match f {
        f if f.is_nan() => "NaN".into(),
        f if f.is_infinite() && f > 0.0 => "Infinity".into(),
        f if f.is_infinite() => "-Infinity".into(),
        f => float(f),
    }
}

/// The items in the order of their keys, as with Python's `sorted`: items with equal keys keep
/// their order. If the order contradicts itself (NaN), the result has some order. The standard
/// library's sort is not used, because it may panic then.
pub fn sorted<T: Clone>(
    meter: &mut Meter<'_>,
    items: &[T],
    key: impl Fn(&T) -> &Value,
    reverse: bool,
) -> Result<Vec<T>> {
    let n = items.len();
    let mut from: Vec<u32> = meter.list(n)?;
    from.extend(0..n as u32);
    let mut to: Vec<u32> = meter.list(n)?;
    let mut width = 1;
    while width < n {
        to.clear();
        for start in (0..n).step_by(2 * width) {
            let (middle, end) = ((start + width).min(n), (start + 2 * width).min(n));
            let (mut a, mut b) = (start, middle);
            while a < middle || b < end {
                let second = if a == middle || b == end {
                    a == middle
                } else {
                    let first = key(&items[from[a] as usize]);
                    let second = key(&items[from[b] as usize]);
                    meter.step()?;
                    let ordering = order(second, first, meter)?;
                    let wanted = if reverse {
                        Ordering::Greater
                    } else {
                        Ordering::Less
                    };
                    ordering == Some(wanted)
                };
                let next = if second { &mut b } else { &mut a };
                to.push(from[*next]);
                *next += 1;
            }
        }
        std::mem::swap(&mut from, &mut to);
        width *= 2;
    }
    let mut sorted = meter.list(n)?;
    sorted.extend(from.into_iter().map(|i| items[i as usize].clone()));
    Ok(sorted)
}
