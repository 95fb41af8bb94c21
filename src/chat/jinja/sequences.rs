//! Filters of sequences.

use super::arguments::{Arguments, count, flag, given, integer, required, soft_text};
use super::evaluator::Evaluator;
use super::fault::{Result, evaluation};
use super::repr::sorted;
use super::text::{Builder, Text, short};
use super::value::{Value, equal};
use super::{ast, lookup, names, ops, predicates, strings};
use std::cmp::Ordering;

/// `value | name(args)`, where `name` is a filter of sequences.
pub fn apply(
    e: &mut Evaluator<'_, '_>,
    name: &str,
    value: &Value,
    args: &Arguments,
) -> Option<Result<Value>> {
    let filter: fn(&mut Evaluator<'_, '_>, &str, &Value, Arguments) -> Result<Value> = match name {
        "length" | "count" => length,
        "first" | "last" => end,
        "list" => |e, name, value, args| {
            args.none(name)?;
            Value::list(e.elements(value)?)
        },
        "join" => join,
        "map" => map,
        "select" | "reject" | "selectattr" | "rejectattr" => select,
        "reverse" => reverse,
        "sort" => sort,
        "dictsort" => dictsort,
        "unique" => unique,
        "min" | "max" => extreme,
        "sum" => sum,
        "batch" | "slice" => groups,
        "groupby" => groupby,
        _ => return None,
    };
    let args = Arguments {
        positional: args.positional.clone(),
        keyword: args.keyword.clone(),
    };
    Some(filter(e, name, value, args))
}

fn length(e: &mut Evaluator<'_, '_>, name: &str, value: &Value, args: Arguments) -> Result<Value> {
    args.none(name)?;
    let length = match value {
        Value::Text(text) => text.chars(&mut e.meter)?,
        Value::Loop(id) => return Ok(e.loop_attr(*id, "length")?.unwrap_or(Value::None)),
        Value::Generator(_) => return evaluation("a generator has no length"),
        value => {
            let source = e.iterate(value)?;
            e.known_length(&source).unwrap_or(0)
        }
    };
    Ok(Value::Int(length as i128))
}

fn end(e: &mut Evaluator<'_, '_>, name: &str, value: &Value, args: Arguments) -> Result<Value> {
    args.none(name)?;
    let found = match name {
        "first" => {
            let mut source = e.iterate(value)?;
            e.next(&mut source)?
        }
        _ => match value {
            Value::Generator(_) => return evaluation("a generator has no last element"),
            value => reversed(e, value)?.into_iter().next(),
        },
    };
    Ok(found.unwrap_or_else(|| Value::undefined(format!("there is no {name} element"))))
}

fn join(e: &mut Evaluator<'_, '_>, name: &str, value: &Value, args: Arguments) -> Result<Value> {
    let [separator, attribute] = args.bind(name, ["d", "attribute"])?;
    let separator = match separator {
        Some(separator) => soft_text(&mut e.meter, &separator)?,
        None => short(""),
    };
    let path = attribute_path(e, given(attribute))?;
    let mut source = e.iterate(value)?;
    let mut all = Builder::default();
    let mut first = true;
    while let Some(item) = e.next(&mut source)? {
        if !std::mem::take(&mut first) {
            all.push_text(&mut e.meter, &separator)?;
        }
        let item = along(e, item, &path, None)?;
        let item = soft_text(&mut e.meter, &item)?;
        all.push_text(&mut e.meter, &item)?;
    }
    Ok(Value::Text(all.finish()))
}

/// `a.b.0` as keys.
fn attribute_path(e: &mut Evaluator<'_, '_>, attribute: Option<Value>) -> Result<Vec<Value>> {
    let mut path = Vec::new();
    match attribute {
        None => {}
        Some(Value::Text(names)) => {
            for name in names.as_str().split('.') {
                let digits = !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit());
                let key = match name.parse() {
                    Ok(index) if digits => Value::Int(index),
                    _ => Value::Text(Text::copy(&mut e.meter, name, names.is_templates())?),
                };
                e.meter.push(&mut path, key)?;
            }
        }
        Some(other) => e.meter.push(&mut path, other)?,
    }
    Ok(path)
}

fn along(
    e: &mut Evaluator<'_, '_>,
    mut item: Value,
    path: &[Value],
    default: Option<&Value>,
) -> Result<Value> {
    for key in path {
        e.meter.step()?;
        item = lookup::item(e, &item, key)?;
        if let (Value::Undefined(_), Some(default)) = (&item, default) {
            item = default.clone();
        }
    }
    Ok(item)
}

fn map(e: &mut Evaluator<'_, '_>, name: &str, value: &Value, args: Arguments) -> Result<Value> {
    let mut results = Vec::new();
    if !value.truth() {
        return e.generator(results);
    }
    let mut args = args;
    if args.positional.is_empty() {
        let [attribute, default] = args.bind(name, ["attribute", "default"])?;
        let path = attribute_path(e, Some(required(attribute, name, "attribute")?))?;
        let default = given(default);
        let mut source = e.iterate(value)?;
        while let Some(item) = e.next(&mut source)? {
            let item = along(e, item, &path, default.as_ref())?;
            e.meter.push(&mut results, item)?;
        }
        return e.generator(results);
    }
    let Value::Text(filter) = args.positional.remove(0) else {
        return evaluation("`map` needs the name of a filter");
    };
    let mut source = e.iterate(value)?;
    while let Some(item) = e.next(&mut source)? {
        let args = copied(e, &args)?;
        let item = e.deeper(|e| e.filter(filter.as_str(), item, args))?;
        e.meter.push(&mut results, item)?;
    }
    e.generator(results)
}

fn copied(e: &mut Evaluator<'_, '_>, args: &Arguments) -> Result<Arguments> {
    let mut positional = e.meter.list(args.positional.len())?;
    positional.extend_from_slice(&args.positional);
    let mut keyword = e.meter.list(args.keyword.len())?;
    keyword.extend_from_slice(&args.keyword);
    Ok(Arguments {
        positional,
        keyword,
    })
}

fn select(e: &mut Evaluator<'_, '_>, name: &str, value: &Value, args: Arguments) -> Result<Value> {
    let mut results = Vec::new();
    if !value.truth() {
        return e.generator(results);
    }
    let mut args = args;
    let wanted = name.starts_with("select");
    let mut path = Vec::new();
    if name.ends_with("attr") {
        if args.positional.is_empty() {
            return evaluation(format!("`{name}` needs the name of an attribute"));
        }
        path = attribute_path(e, Some(args.positional.remove(0)))?;
    }
    let test = match args.positional.is_empty() {
        true => None,
        false => match args.positional.remove(0) {
            Value::Text(test) => Some(test),
            _ => return evaluation(format!("`{name}` needs the name of a test")),
        },
    };
    if let Some(test) = &test
        && !names::is_test(test.as_str())
    {
        return evaluation(format!("there is no test `{}`", test.as_str()));
    }
    let mut source = e.iterate(value)?;
    while let Some(item) = e.next(&mut source)? {
        let tested = along(e, item.clone(), &path, None)?;
        let holds = match &test {
            Some(test) => {
                let args = copied(e, &args)?;
                predicates::holds(e, test.as_str(), &tested, args)?
            }
            None => tested.truth(),
        };
        if holds == wanted {
            e.meter.push(&mut results, item)?;
        }
    }
    e.generator(results)
}

fn reversed(e: &mut Evaluator<'_, '_>, value: &Value) -> Result<Vec<Value>> {
    let mut items = e.elements(value)?;
    items.reverse();
    Ok(items)
}

fn reverse(e: &mut Evaluator<'_, '_>, name: &str, value: &Value, args: Arguments) -> Result<Value> {
    args.none(name)?;
    match value {
        Value::Text(_) => {
            let bounds = [Value::None, Value::None, Value::Int(-1)];
            lookup::slice(e, value, &bounds)
        }
        Value::Generator(_) => Value::list(reversed(e, value)?),
        value => {
            let items = reversed(e, value)?;
            e.generator(items)
        }
    }
}

/// The value that is compared: a text in lower case, unless `case_sensitive`.
fn folded(e: &mut Evaluator<'_, '_>, value: Value, case_sensitive: bool) -> Result<Value> {
    match value {
        Value::Text(text) if !case_sensitive => {
            Ok(Value::Text(strings::cased(&mut e.meter, &text, "lower")?))
        }
        value => Ok(value),
    }
}

/// Elements with their sort keys.
fn keyed(
    e: &mut Evaluator<'_, '_>,
    value: &Value,
    attribute: Option<Value>,
    case_sensitive: bool,
) -> Result<Vec<(Value, Value)>> {
    let path = attribute_path(e, attribute)?;
    let mut pairs = Vec::new();
    let mut source = e.iterate(value)?;
    while let Some(item) = e.next(&mut source)? {
        let key = along(e, item.clone(), &path, None)?;
        let key = folded(e, key, case_sensitive)?;
        e.meter.push(&mut pairs, (key, item))?;
    }
    Ok(pairs)
}

fn items_of(e: &mut Evaluator<'_, '_>, pairs: Vec<(Value, Value)>) -> Result<Vec<Value>> {
    let mut items = e.meter.list(pairs.len())?;
    items.extend(pairs.into_iter().map(|(_, item)| item));
    Ok(items)
}

fn sort(e: &mut Evaluator<'_, '_>, name: &str, value: &Value, args: Arguments) -> Result<Value> {
    let names = ["reverse", "case_sensitive", "attribute"];
    let [reverse, case, attribute] = args.bind(name, names)?;
    let (reverse, case) = (flag(reverse), flag(case));
    let mut pairs = match given(attribute) {
        // The sort key consists of several attributes. The first one counts most.
        Some(Value::Text(several)) if several.as_str().contains(',') => {
            let mut pairs = Vec::new();
            let mut source = e.iterate(value)?;
            while let Some(item) = e.next(&mut source)? {
                let mut keys = Vec::new();
                for one in several.as_str().split(',') {
                    let one = Text::copy(&mut e.meter, one, true)?;
                    let path = attribute_path(e, Some(Value::Text(one)))?;
                    let key = along(e, item.clone(), &path, None)?;
                    let key = folded(e, key, case)?;
                    e.meter.push(&mut keys, key)?;
                }
                e.meter.push(&mut pairs, (Value::tuple(keys)?, item))?;
            }
            pairs
        }
        attribute => {
            let mut pairs = keyed(e, value, attribute, case)?;
            for (key, _) in &mut pairs {
                // A tuple of one element, because elements of a tuple are compared only where they
                // differ.
                let mut one = e.meter.list(1)?;
                one.push(std::mem::replace(key, Value::None));
                *key = Value::tuple(one)?;
            }
            pairs
        }
    };
    pairs = sorted(&mut e.meter, &pairs, |(key, _)| key, reverse)?;
    Value::list(items_of(e, pairs)?)
}

fn dictsort(
    e: &mut Evaluator<'_, '_>,
    name: &str,
    value: &Value,
    args: Arguments,
) -> Result<Value> {
    let [case, by, reverse] = args.bind(name, ["case_sensitive", "by", "reverse"])?;
    let Value::Dict(dict) = value else {
        let of = value.of_type();
        return evaluation(format!("`dictsort` needs a dict, not {of}"));
    };
    let by_value = match by {
        None => false,
        Some(Value::Text(by)) if by.as_str() == "key" => false,
        Some(Value::Text(by)) if by.as_str() == "value" => true,
        Some(_) => return evaluation("`dictsort` sorts by key or by value"),
    };
    let case = flag(case);
    let mut pairs = e.meter.list(dict.entries().len())?;
    for (key, value) in dict.entries() {
        let sort_by = if by_value { value } else { key };
        let sort_by = folded(e, sort_by.clone(), case)?;
        let mut pair = e.meter.list(2)?;
        pair.extend([key.clone(), value.clone()]);
        pairs.push((sort_by, Value::tuple(pair)?));
    }
    let pairs = sorted(&mut e.meter, &pairs, |(key, _)| key, flag(reverse))?;
    Value::list(items_of(e, pairs)?)
}

fn unique(e: &mut Evaluator<'_, '_>, name: &str, value: &Value, args: Arguments) -> Result<Value> {
    let [case, attribute] = args.bind(name, ["case_sensitive", "attribute"])?;
    let pairs = keyed(e, value, given(attribute), flag(case))?;
    // A dict with each key's first place tells which elements stay. The pairs are added in reverse
    // order, because the last value of a key counts.
    let mut places = e.meter.list(pairs.len())?;
    for (i, (key, _)) in pairs.iter().enumerate().rev() {
        places.push((key.clone(), Value::Int(i as i128)));
    }
    let Value::Dict(first) = Value::dict(&mut e.meter, places)? else {
        return Ok(Value::None);
    };
    let mut kept = Vec::new();
    for (i, (key, item)) in pairs.into_iter().enumerate() {
        let place = first.get(&mut e.meter, &key)?.and_then(Value::index);
        if place == Some(i as i128) {
            e.meter.push(&mut kept, item)?;
        }
    }
    e.generator(kept)
}

fn extreme(e: &mut Evaluator<'_, '_>, name: &str, value: &Value, args: Arguments) -> Result<Value> {
    let [case, attribute] = args.bind(name, ["case_sensitive", "attribute"])?;
    let wanted = match name {
        "min" => Ordering::Less,
        _ => Ordering::Greater,
    };
    let mut best: Option<(Value, Value)> = None;
    for (key, item) in keyed(e, value, given(attribute), flag(case))? {
        let better = match &best {
            Some((other, _)) => super::value::order(&key, other, &mut e.meter)? == Some(wanted),
            None => true,
        };
        if better {
            best = Some((key, item));
        }
    }
    Ok(match best {
        Some((_, item)) => item,
        None => Value::undefined("a sequence without elements has no extreme"),
    })
}

fn sum(e: &mut Evaluator<'_, '_>, name: &str, value: &Value, args: Arguments) -> Result<Value> {
    let [attribute, start] = args.bind(name, ["attribute", "start"])?;
    let path = attribute_path(e, given(attribute))?;
    let mut total = start.unwrap_or(Value::Int(0));
    if let Value::Text(_) = total {
        return evaluation("`sum` adds no texts");
    }
    let mut source = e.iterate(value)?;
    while let Some(item) = e.next(&mut source)? {
        let item = along(e, item, &path, None)?;
        total = ops::arithmetic(e, ast::Op::Add, &total, &item)?;
    }
    Ok(total)
}

fn groups(e: &mut Evaluator<'_, '_>, name: &str, value: &Value, args: Arguments) -> Result<Value> {
    let size_name = if name == "batch" {
        "linecount"
    } else {
        "slices"
    };
    let [size, fill] = args.bind(name, [size_name, "fill_with"])?;
    let size = integer(&required(size, name, size_name)?, size_name)?;
    let fill = given(fill);
    let items = e.elements(value)?;
    let n = items.len();
    let mut results = Vec::new();
    if name == "batch" {
        if size <= 0 {
            return evaluation("`batch` needs a number above 0");
        }
        let size = count(size);
        for chunk in items.chunks(size) {
            let missing = match &fill {
                Some(_) => size - chunk.len(),
                None => 0,
            };
            let mut group = e.meter.list(chunk.len().saturating_add(missing))?;
            group.extend_from_slice(chunk);
            if let Some(fill) = &fill {
                group.extend(std::iter::repeat_n(fill.clone(), missing));
            }
            let group = Value::list(group)?;
            e.meter.push(&mut results, group)?;
        }
        return e.generator(results);
    }
    if size == 0 {
        return evaluation("`slice` needs a number above 0");
    }
    let size = count(size);
    let mut from = 0;
    for i in 0..size {
        e.meter.step()?;
        let extra = i < n % size;
        let to = from + n / size + usize::from(extra);
        let mut group = e.meter.list(to - from + 1)?;
        group.extend_from_slice(&items[from..to]);
        if let (Some(fill), false) = (&fill, extra) {
            group.push(fill.clone());
        }
        let group = Value::list(group)?;
        e.meter.push(&mut results, group)?;
        from = to;
    }
    e.generator(results)
}

fn groupby(e: &mut Evaluator<'_, '_>, name: &str, value: &Value, args: Arguments) -> Result<Value> {
    let names = ["attribute", "default", "case_sensitive"];
    let [attribute, default, case] = args.bind(name, names)?;
    let path = attribute_path(e, Some(required(attribute, name, "attribute")?))?;
    let (default, case) = (given(default), flag(case));
    let mut pairs = Vec::new();
    let mut source = e.iterate(value)?;
    while let Some(item) = e.next(&mut source)? {
        let key = along(e, item.clone(), &path, default.as_ref())?;
        let key = folded(e, key, case)?;
        e.meter.push(&mut pairs, (key, item))?;
    }
    let pairs = sorted(&mut e.meter, &pairs, |(key, _)| key, false)?;
    let mut results: Vec<Value> = Vec::new();
    let mut at = 0;
    while at < pairs.len() {
        let mut end = at + 1;
        while end < pairs.len() && equal(&pairs[at].0, &pairs[end].0, &mut e.meter)? {
            end += 1;
        }
        let mut group = e.meter.list(end - at)?;
        group.extend(pairs[at..end].iter().map(|(_, item)| item.clone()));
        let key = along(e, group[0].clone(), &path, default.as_ref())?;
        let mut pair = e.meter.list(2)?;
        pair.extend([key, Value::list(group)?]);
        let pair = Value::group(pair)?;
        e.meter.push(&mut results, pair)?;
        at = end;
    }
    Value::list(results)
}
