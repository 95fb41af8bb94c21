//! What a schema says of an array's items.

use super::conjunction::{self, ARRAY, key, names};
use super::{Made, Translation, bytes, count};
use crate::Result;
use serde_json::{Map, Value, json};
use std::collections::HashSet;

pub(super) const KEYWORDS: [&str; 10] = [
    "prefixItems",
    "items",
    "additionalItems",
    "unevaluatedItems",
    "minItems",
    "maxItems",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
];

/// The most arrays by which an array of unique items is expressed.
const MAX_ARRAYS: usize = 120;

impl<'a> Translation<'a> {
    pub(super) fn items(
        &mut self,
        part: &'a Value,
        members: &'a Map<String, Value>,
        made: &mut Made,
    ) -> Result<()> {
        let draft = self.document.draft;
        let member = |keyword| members.get(keyword).filter(|_| draft.has(keyword));
        // In every draft a list as `items` is read as what is now called `prefixItems`. In the
        // newest draft such a list has no other meaning.
        let (first, rest) = match member("items") {
            Some(list @ Value::Array(_)) => (Some(list), member("additionalItems")),
            rest => (member("prefixItems"), rest),
        };
        if let Some(first) = first {
            let first = match first {
                Value::Array(first) => {
                    let first = first.iter().map(|schema| self.inside(schema));
                    Value::Array(first.collect::<Result<_>>()?)
                }
                // The parser refuses it.
                other => other.clone(),
            };
            made.own.insert("prefixItems".into(), first);
        }
        if let Some(rest) = rest {
            let rest = self.inside(rest)?;
            made.own.insert("items".into(), rest);
        }
        for keyword in ["minItems", "maxItems"] {
            if let Some(value) = member(keyword) {
                made.own.insert(keyword.into(), count(value));
            }
        }
        match member("unevaluatedItems") {
            Some(Value::Bool(true)) | None => {}
            Some(_) if rest.is_some() => {}
            Some(rest) => self.unevaluated_items(rest, part, made)?,
        }
        if let Some(contained) = member("contains") {
            let bounds = (member("minContains"), member("maxContains"));
            self.contains(contained, bounds, part, made)?;
        }
        match member("uniqueItems") {
            Some(Value::Bool(false)) | None => Ok(()),
            Some(_) => self.unique_items(part, made),
        }
    }

    fn unevaluated_items(
        &mut self,
        rest: &'a Value,
        whole: &'a Value,
        made: &mut Made,
    ) -> Result<()> {
        const CONDITIONS: [&str; 5] = ["anyOf", "oneOf", "if", "dependentSchemas", "contains"];
        let parts = self.all_of(&[whole])?.unwrap_or_default();
        let has = |part: &Value, keyword: &str| part.get(keyword).is_some();
        let hangs = |part: &&Value| CONDITIONS.iter().any(|keyword| has(part, keyword));
        if parts.is_empty() || parts.iter().any(hangs) {
            let why = "unevaluatedItems beside conditions cannot be followed";
            return self.pass_over(whole, why);
        }
        let has_first = self.document.draft.has("prefixItems");
        let mut longest = 0;
        for part in parts {
            let is_whole = std::ptr::eq(part, whole);
            let first = part.get("prefixItems");
            match (part.get("items"), first.filter(|_| has_first)) {
                (Some(Value::Array(_)), _) if has(part, "additionalItems") => return Ok(()),
                (Some(Value::Array(first)), _) | (None, Some(Value::Array(first))) => {
                    longest = longest.max(first.len());
                }
                (Some(_), _) => return Ok(()),
                (None, _) => {}
            }
            if has(part, "unevaluatedItems") && !is_whole {
                return Ok(());
            }
        }
        let rest = self.inside(rest)?;
        self.spend(longest.saturating_mul(bytes(&Value::Null)))?;
        let first = vec![true; longest];
        made.beside
            .push(json!({"prefixItems": first, "items": rest}));
        Ok(())
    }

    /// Translates `contains`, if it can be decided without looking at the items.
    fn contains(
        &mut self,
        contained: &Value,
        (least, most): (Option<&Value>, Option<&Value>),
        part: &Value,
        made: &mut Made,
    ) -> Result<()> {
        let least = least.map_or(json!(1), count);
        let contains_all = match contained {
            Value::Bool(all) => Some(*all),
            Value::Object(members) if members.is_empty() => Some(true),
            _ => None,
        };
        let mut bounds = Map::new();
        match contains_all {
            _ if least == json!(0) && most.is_none() => {}
            Some(true) => {
                bounds.insert("minItems".into(), least);
                if let Some(most) = most {
                    bounds.insert("maxItems".into(), count(most));
                }
            }
            Some(false) if least != json!(0) => {
                bounds.insert("type".into(), json!(names(conjunction::ALL & !ARRAY)));
            }
            Some(false) => {}
            None => self.pass_over(part, "contains cannot be followed")?,
        }
        if !bounds.is_empty() {
            made.beside.push(bounds.into());
        }
        Ok(())
    }

    /// Translates `uniqueItems` if there are only a few possible items: into one array for each
    /// order of distinct items.
    fn unique_items(&mut self, part: &'a Value, made: &mut Made) -> Result<()> {
        let count = |keyword| made.own.get(keyword).and_then(Value::as_u64);
        let (least, most) = (count("minItems").unwrap_or(0), count("maxItems"));
        if most.is_some_and(|most| most <= 1) {
            return Ok(());
        }
        let schema = part
            .get("items")
            .filter(|_| !made.own.contains_key("prefixItems"));
        let listed = match schema {
            Some(schema) => self.all_of(&[schema])?.filter(|parts| is_list(parts)),
            None => None,
        };
        let (mut distinct, mut seen) = (Vec::<&Value>::new(), HashSet::new());
        for value in listed
            .and_then(|parts| self.values(&parts))
            .unwrap_or_default()
        {
            if seen.insert(key(value)) {
                distinct.push(value);
            }
        }
        let all = distinct.len() as u64;
        let longest = most.map_or(all, |most| most.min(all));
        let arrays = (all - longest + 1..=all).try_fold(1, u64::checked_mul);
        if all == 0 || arrays.is_none_or(|arrays| arrays > MAX_ARRAYS as u64) {
            let why = "uniqueItems cannot be followed but for a few items by their names";
            return self.pass_over(part, why);
        }
        let mut choices = Vec::new();
        // Each value is used at most once, so an array longer than all values is impossible.
        if least <= longest {
            self.spend(MAX_ARRAYS * distinct.iter().map(|value| bytes(value)).sum::<usize>())?;
            let mut order: Vec<usize> = (0..distinct.len()).collect();
            arrays_of(&mut order, 0, longest as usize, &mut |order| {
                let first: Vec<_> = order
                    .iter()
                    .map(|&i| json!({"const": distinct[i]}))
                    .collect();
                choices.push(json!({
                    "type": "array",
                    "prefixItems": first,
                    "items": false,
                    "minItems": least,
                }));
            });
        }
        let others = self.types(&[part]) & !ARRAY;
        if others > 0 {
            choices.push(json!({"type": names(others)}));
        }
        made.own.remove("items");
        made.beside.push(json!({"anyOf": choices}));
        Ok(())
    }
}

/// Whether the items are exactly the listed values, with no other keyword that restricts them.
fn is_list(parts: &[&Value]) -> bool {
    const KNOWN: [&str; 5] = ["type", "const", "enum", "$ref", "allOf"];
    const OTHERS: [&str; 6] = [
        "title",
        "description",
        "default",
        "examples",
        "$defs",
        "$comment",
    ];
    let is_known =
        |name: &String| KNOWN.contains(&name.as_str()) || OTHERS.contains(&name.as_str());
    parts.iter().all(|part| match part {
        Value::Object(members) => members.keys().all(is_known),
        part => **part == Value::Bool(true),
    })
}

/// Calls `then` with each ordered choice of `n` of `values`.
fn arrays_of(values: &mut [usize], from: usize, n: usize, then: &mut dyn FnMut(&[usize])) {
    if from == n {
        return then(&values[..n]);
    }
    for i in from..values.len() {
        values.swap(from, i);
        arrays_of(values, from + 1, n, then);
        values.swap(from, i);
    }
}
