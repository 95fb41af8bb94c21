//! Python's `str.format`.

use super::arguments::Arguments;
use super::evaluator::Evaluator;
use super::fault::{Result, evaluation, unsupported};
use super::format::{Spec, float, integer, number, padded, sign};
use super::strings::escaped;
use super::text::Text;
use super::value::{Number, Value};
use super::{lookup, repr};

/// `text.format(args)`
pub fn braces(e: &mut Evaluator<'_, '_>, text: &Text, args: Arguments) -> Result<Text> {
    let mut out = Braces {
        text: String::new(),
        templates: text.is_templates(),
        escapes: text.is_markup(),
        next: 0,
        numbered: None,
        args,
    };
    out.write(e, text.as_str(), 0)?;
    Ok(Text::of(out.text, out.templates).marked(text.is_markup()))
}

struct Braces {
    text: String,
    templates: bool,
    /// Whether arguments are escaped.
    escapes: bool,
    /// The next argument that `{}` takes.
    next: usize,
    /// Whether fields are numbered. `None` before the first field.
    numbered: Option<bool>,
    args: Arguments,
}

impl Braces {
    /// Writes `text`. `level` 1 is the inside of a format specification.
    fn write(&mut self, e: &mut Evaluator<'_, '_>, text: &str, level: u32) -> Result<()> {
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            e.meter.step()?;
            e.meter.write(&mut self.text, &rest[..at])?;
            let brace = &rest[at..=at];
            let behind = &rest[at + 1..];
            if let Some(behind) = behind.strip_prefix(brace) {
                e.meter.write(&mut self.text, brace)?;
                rest = behind;
                continue;
            }
            if brace == "}" {
                return evaluation("a single `}` in a format");
            }
            let (mut depth, mut end) = (1, None);
            for (i, c) in behind.char_indices() {
                depth += match c {
                    '{' => 1,
                    '}' => -1,
                    _ => 0,
                };
                if depth == 0 {
                    end = Some(i);
                    break;
                }
            }
            let Some(end) = end else {
                return evaluation("a `{` without `}` in a format");
            };
            e.meter.look_at(end)?;
            self.field(e, &behind[..end], level)?;
            rest = &behind[end + 1..];
        }
        e.meter.write(&mut self.text, rest)
    }

    fn field(&mut self, e: &mut Evaluator<'_, '_>, field: &str, level: u32) -> Result<()> {
        if level > 1 {
            return evaluation("a format is nested too deep");
        }
        let end = field.find(['!', ':']).unwrap_or(field.len());
        let (name, mut behind) = field.split_at(end);
        let value = self.value(e, name)?;
        let mut value = value;
        if let Some(conversion) = behind.strip_prefix('!') {
            let text = match conversion.chars().next() {
                Some('r' | 'a') => repr::repr(&mut e.meter, &value)?,
                Some('s') => repr::string(&mut e.meter, &value)?,
                _ => return evaluation("an unknown conversion in a format"),
            };
            value = Value::Text(text);
            behind = &conversion[1..];
        }
        let spec = match behind.strip_prefix(':') {
            Some(spec) if spec.contains('{') => {
                let before = std::mem::take(&mut self.text);
                self.write(e, spec, level + 1)?;
                std::mem::replace(&mut self.text, before)
            }
            Some(spec) => spec.to_owned(),
            None if behind.is_empty() => String::new(),
            None => return evaluation("expected `:` in a format"),
        };
        let is_markup = matches!(&value, Value::Text(text) if text.is_markup());
        if !self.escapes || is_markup {
            return self.formatted(e, &value, &spec);
        }
        let before = std::mem::take(&mut self.text);
        self.formatted(e, &value, &spec)?;
        let shown = Text::of(std::mem::replace(&mut self.text, before), true);
        let shown = escaped(&mut e.meter, &shown)?;
        e.meter.write(&mut self.text, shown.as_str())
    }

    /// The argument that `name` refers to, with its attributes and items.
    fn value(&mut self, e: &mut Evaluator<'_, '_>, name: &str) -> Result<Value> {
        let end = name.find(['.', '[']).unwrap_or(name.len());
        let (first, mut rest) = name.split_at(end);
        let index = match first {
            "" => {
                self.next += 1;
                Some(self.next - 1)
            }
            first => first.parse::<usize>().ok(),
        };
        if index.is_some() && *self.numbered.get_or_insert(!first.is_empty()) == first.is_empty() {
            return evaluation("a format numbers some of its fields only");
        }
        let found = match index {
            Some(index) => self.args.positional.get(index).cloned(),
            None => {
                let mut named = self.args.keyword.iter();
                let found = named.find(|(key, _)| key.as_str() == first);
                found.map(|(_, value)| value.clone())
            }
        };
        let Some(mut value) = found else {
            return evaluation(format!("a format has no value for `{first}`"));
        };
        while !rest.is_empty() {
            e.meter.step()?;
            if let Some(behind) = rest.strip_prefix('.') {
                let end = behind.find(['.', '[']).unwrap_or(behind.len());
                let name = Text::copy(&mut e.meter, &behind[..end], true)?;
                value = lookup::attr(e, &value, &name)?;
                rest = &behind[end..];
            } else {
                let Some(end) = rest.find(']') else {
                    return evaluation("a `[` without `]` in a format");
                };
                let key = match rest[1..end].parse::<i128>() {
                    Ok(index) => Value::Int(index),
                    Err(_) => Value::Text(Text::copy(&mut e.meter, &rest[1..end], true)?),
                };
                value = lookup::item(e, &value, &key)?;
                rest = &rest[end + 1..];
            }
        }
        Ok(value)
    }

    fn formatted(
        &mut self,
        e: &mut Evaluator<'_, '_>,
        value: &Value,
        spec_text: &str,
    ) -> Result<()> {
        let spec = parse_spec(spec_text)?;
        let meter = &mut e.meter;
        let numeric = match value {
            Value::Bool(_) if spec_text.is_empty() => None,
            value => value.number(),
        };
        let Some(value) = numeric else {
            if !matches!(spec.kind, None | Some('s')) || spec.align == Some('=') {
                let (kind, of) = (spec.kind.unwrap_or('='), value.of_type());
                return evaluation(format!("the format `{kind}` does not fit {of}"));
            }
            if !matches!(value, Value::Text(_)) && (spec.width > 0 || spec.precision.is_some()) {
                let of = value.of_type();
                return evaluation(format!("{of} has no format with a width"));
            }
            let text = repr::string(meter, value)?;
            self.templates &= text.is_templates();
            return padded(meter, &mut self.text, &text, &spec);
        };
        match (spec.kind, value) {
            (None | Some('d' | 'x' | 'X' | 'o' | 'b' | 'n'), Number::Int(_)) => {
                if spec.precision.is_some() {
                    return evaluation("an integer has no precision");
                }
                integer(meter, &mut self.text, value, &spec, 0)
            }
            (Some('c'), Number::Int(i)) => match u32::try_from(i).ok().and_then(char::from_u32) {
                Some(c) => padded(meter, &mut self.text, &super::text::short(c), &spec),
                None => evaluation("`c` needs a character's code"),
            },
            (None, Number::Float(f)) if spec.precision.is_none() => {
                let digits = repr::float(f.abs());
                let prefix = sign(f.is_sign_negative() && !f.is_nan(), &spec);
                number(meter, &mut self.text, &prefix, &digits, &spec)
            }
            (None, _) => unsupported("a precision without a kind in a format"),
            (Some('f' | 'F' | 'e' | 'E' | 'g' | 'G' | '%'), _) => {
                float(meter, &mut self.text, value.float(), &spec)
            }
            (Some(kind), _) => evaluation(format!("the format `{kind}` does not fit a number")),
        }
    }
}

/// `[[fill]align][sign][#][0][width][,][.precision][kind]`
fn parse_spec(text: &str) -> Result<Spec> {
    let mut spec = Spec::default();
    let mut chars = text.chars().peekable();
    let aligns = ['<', '>', '^', '='];
    let mut ahead = text.chars();
    let (first, second) = (ahead.next(), ahead.next());
    if second.is_some_and(|c| aligns.contains(&c)) {
        (spec.fill, spec.align) = (first, second);
        chars.nth(1);
    } else if first.is_some_and(|c| aligns.contains(&c)) {
        spec.align = first;
        chars.next();
    }
    if let Some(sign) = chars.next_if(|c| matches!(c, '+' | '-' | ' ')) {
        spec.sign = Some(sign);
    }
    spec.alternate = chars.next_if_eq(&'#').is_some();
    if chars.next_if_eq(&'0').is_some() {
        spec.fill = spec.fill.or(Some('0'));
        spec.align = spec.align.or(Some('='));
    }
    let mut digits = || {
        let mut number: Option<usize> = None;
        while let Some(digit) = chars.next_if(char::is_ascii_digit) {
            let digit = digit as usize - '0' as usize;
            number = Some(number.unwrap_or(0).saturating_mul(10).saturating_add(digit));
        }
        number
    };
    spec.width = digits().unwrap_or(0);
    spec.group = chars.next_if(|c| matches!(c, ',' | '_'));
    if chars.next_if_eq(&'.').is_some() {
        let mut number: Option<usize> = None;
        while let Some(digit) = chars.next_if(char::is_ascii_digit) {
            let digit = digit as usize - '0' as usize;
            number = Some(number.unwrap_or(0).saturating_mul(10).saturating_add(digit));
        }
        match number {
            Some(number) => spec.precision = Some(number),
            None => return evaluation("a format without a precision behind `.`"),
        }
    }
    spec.kind = chars.next();
    if chars.next().is_some() {
        return evaluation("an invalid format");
    }
    Ok(spec)
}
