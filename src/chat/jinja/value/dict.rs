//! Dicts: their keys, in the order of insertion, and finding a key.

use super::{Value, equal, one_deeper};
use crate::chat::jinja::fault::{Result, evaluation};
use crate::chat::jinja::limits::Meter;
use std::hash::{BuildHasher, RandomState};

/// A dict in the order of insertion.
#[derive(Debug)]
pub struct Dict {
    entries: Vec<(Value, Value)>,
    /// Hashes and the numbers of their entries, in ascending order. Empty if a dict is too small to
    /// make a search worth it.
    index: Vec<(u64, u32)>,
    pub(super) depth: u32,
}

/// Up to this many entries are searched one by one.
const FEW: usize = 8;

thread_local! {
    // The hash is keyed, so that nobody outside can find keys with equal hashes.
    static HASHER: RandomState = RandomState::new();
}

fn hash(key: &Value, meter: &mut Meter<'_>) -> Result<u64> {
    let hash_of = |bytes: &[u8], kind: u8| HASHER.with(|hasher| hasher.hash_one((kind, bytes)));
    Ok(match key {
        Value::Text(text) => {
            meter.look_at(text.as_str().len())?;
            hash_of(text.as_str().as_bytes(), 0)
        }
        Value::None => hash_of(&[], 1),
        Value::Bool(b) => hash_of(&i128::from(*b).to_le_bytes(), 2),
        Value::Int(i) => hash_of(&i.to_le_bytes(), 2),
        Value::Float(f) if f.fract() == 0.0 && f.abs() < 1e38 => {
            hash_of(&(*f as i128).to_le_bytes(), 2)
        }
        Value::Float(f) => hash_of(&f.to_bits().to_le_bytes(), 3),
        Value::Tuple(seq) => {
            let mut all: u64 = 4;
            for item in &seq.items {
                meter.step()?;
                let one = hash(item, meter)?;
                all = all.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ one;
            }
            all
        }
        Value::List(_) | Value::Dict(_) | Value::View(..) => {
            return evaluation(format!("{} cannot be a key", key.of_type()));
        }
        Value::Range(range) => hash_of(&range.len.to_le_bytes(), 5),
        Value::Undefined(_) => hash_of(&[], 6),
        Value::Method(_, name) | Value::Function(name) => hash_of(name.as_bytes(), 7),
        Value::Namespace(i)
        | Value::Generator(i)
        | Value::Macro(i)
        | Value::Loop(i)
        | Value::Cycler(i)
        | Value::Joiner(i) => hash_of(&i.to_le_bytes(), 8),
    })
}

impl Dict {
    /// A dict of pairs that have been charged. Among equal keys, it has the place of the first and
    /// the value of the last.
    pub fn new(meter: &mut Meter<'_>, mut entries: Vec<(Value, Value)>) -> Result<Dict> {
        let mut depth = 0;
        for (key, value) in &entries {
            depth = depth.max(key.depth()).max(value.depth());
        }
        let depth = one_deeper(depth)?;
        let mut index = Vec::new();
        if entries.len() <= FEW {
            let mut n = 0;
            for i in 0..entries.len() {
                hash(&entries[i].0, meter)?;
                let mut earlier = None;
                for j in 0..n {
                    if equal(&entries[j].0, &entries[i].0, meter)? {
                        earlier = Some(j);
                        break;
                    }
                }
                match earlier {
                    Some(j) => entries[j].1 = entries[i].1.clone(),
                    None => {
                        entries.swap(n, i);
                        n += 1;
                    }
                }
            }
            entries.truncate(n);
            return Ok(Dict {
                entries,
                index,
                depth,
            });
        }
        loop {
            index.clear();
            let mut new = meter.list(entries.len())?;
            for (i, (key, _)) in entries.iter().enumerate() {
                new.push((hash(key, meter)?, i as u32));
            }
            new.sort_unstable();
            index = new;
            let mut surplus = Vec::new();
            let mut group = 0;
            for at in 1..index.len() {
                if index[at].0 != index[group].0 {
                    group = at;
                    continue;
                }
                let (_, later) = index[at];
                for &(_, first) in &index[group..at] {
                    let (first, later) = (first as usize, later as usize);
                    if equal(&entries[first].0, &entries[later].0, meter)? {
                        entries[first].1 = entries[later].1.clone();
                        meter.push(&mut surplus, later)?;
                        break;
                    }
                }
            }
            if surplus.is_empty() {
                return Ok(Dict {
                    entries,
                    index,
                    depth,
                });
            }
            surplus.sort_unstable();
            let mut at = 0;
            entries.retain(|_| {
                at += 1;
                surplus.binary_search(&(at - 1)).is_err()
            });
        }
    }

    /// The pairs, in order.
    pub fn entries(&self) -> &[(Value, Value)] {
        &self.entries
    }

    /// The value of a key.
    pub fn get(&self, meter: &mut Meter<'_>, key: &Value) -> Result<Option<&Value>> {
        if self.index.is_empty() {
            if !matches!(key, Value::Text(_)) {
                hash(key, meter)?;
            }
            for (other, value) in &self.entries {
                if equal(other, key, meter)? {
                    return Ok(Some(value));
                }
            }
            return Ok(None);
        }
        let wanted = hash(key, meter)?;
        let from = self.index.partition_point(|&(hash, _)| hash < wanted);
        for &(_, i) in self.index[from..].iter().take_while(|e| e.0 == wanted) {
            let (other, value) = &self.entries[i as usize];
            if equal(other, key, meter)? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// The value of a key that is a text.
    pub fn get_text(&self, key: &str) -> Option<&Value> {
        let found = self.entries.iter().find(|(other, _)| match other {
            Value::Text(text) => text.as_str() == key,
            _ => false,
        });
        found.map(|(_, value)| value)
    }
}
