//! An interpreter for the few pickle opcodes that `torch.save` writes for a dict of tensors. It
//! executes nothing: the callables it knows are a closed list, and each only describes a tensor.
//!
//! Opcodes: Python's `pickletools`. What is on the stack for a tensor: `torch/_utils.py`
//! (`_rebuild_tensor_v2`) and `torch/serialization.py` (`persistent_id`).

use super::bytes::Bytes;
use super::limits::{MAX_RANK, MAX_VALUES};
use crate::sentence;
use std::collections::HashMap;

/// Most bytes of memory that a value takes. A value is on the stack, in a tuple, a dict or the
/// memo, whose tables double as they grow. A tensor of [`MAX_RANK`] dimensions takes some 400, and
/// three values are needed to make one.
pub(super) const WORK_PER_VALUE: usize = 200;

/// A tensor as the pickle describes it. Nothing of it is checked against the storage yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored<'a> {
    /// PyTorch's class of the storage, such as `BFloat16Storage`.
    pub class: &'a str,
    /// Which `data/KEY` of the archive.
    pub key: &'a str,
    /// Elements of the storage.
    pub numel: u64,
    /// First element of the tensor in the storage.
    pub offset: u64,
    /// Sizes, outermost first.
    pub shape: Vec<usize>,
    /// Elements between neighbours, per dimension.
    pub strides: Vec<usize>,
}

impl Stored<'_> {
    /// Whether the elements are row-major without gaps. Where a size is 1 (or any is 0) the stride
    /// says nothing.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1usize;
        for (&size, &stride) in self.shape.iter().zip(&self.strides).rev() {
            if size > 1 && stride != expected {
                return self.shape.contains(&0);
            }
            expected = expected.saturating_mul(size);
        }
        true
    }
}

/// The tensors of a pickled `{name: tensor}`, in file order.
///
/// # Errors
/// A sentence with the byte offset: an opcode or callable outside the list, a value of the wrong
/// kind, a name that comes twice, a truncated or oversized pickle.
pub fn tensors(pickle: &[u8]) -> Result<Vec<(&str, Stored<'_>)>, String> {
    let mut machine = Machine {
        input: Bytes::new(pickle),
        ..Machine::default()
    };
    loop {
        let at = pickle.len() - machine.input.len();
        let stop = machine
            .input
            .u8()
            .ok_or(None)
            .and_then(|opcode| machine.step(opcode));
        match stop {
            Ok(false) => {}
            Ok(true) => return machine.finish().map_err(|e| format!("at byte {at}: {e}")),
            Err(Some(detail)) => return Err(format!("at byte {at}: {detail}")),
            Err(None) => {
                let opcode = pickle
                    .get(at)
                    .map_or("end of file".into(), |b| format!("{b:#04x}"));
                return Err(format!(
                    "at byte {at}: opcode {opcode} lacks its argument or operand"
                ));
            }
        }
    }
}

/// `None`: the input or the stack ended; `Some`: what is wrong.
type Step<T> = Result<T, Option<String>>;

#[derive(Clone, Copy, Debug)]
enum Value<'a> {
    None,
    Bool,
    Int(i64),
    Str(&'a str),
    /// Start and length in `Machine::items`.
    Tuple(usize, usize),
    /// Index in `Machine::dicts`.
    Dict(usize),
    Callable(Callable),
    /// A storage's class, not yet an instance.
    StorageClass(&'a str),
    /// Index in `Machine::storages`.
    Storage(usize),
    /// Index in `Machine::tensors`.
    Tensor(usize),
}

impl Value<'_> {
    fn kind(self) -> &'static str {
        match self {
            Value::None => "None",
            Value::Bool => "a bool",
            Value::Int(_) => "an int",
            Value::Str(_) => "a str",
            Value::Tuple(..) => "a tuple",
            Value::Dict(_) => "a dict",
            Value::Callable(_) | Value::StorageClass(_) => "a class or function",
            Value::Storage(_) => "a storage",
            Value::Tensor(_) => "a tensor",
        }
    }
}

/// All that REDUCE may "call".
#[derive(Clone, Copy, Debug)]
enum Callable {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
}

/// Values live in arenas and are referred to by index, so nothing is ever copied deeply or dropped
/// recursively, whatever the pickle nests.
#[derive(Default)]
struct Machine<'a> {
    input: Bytes<'a>,
    stack: Vec<Value<'a>>,
    /// Stack heights at each MARK.
    marks: Vec<usize>,
    memo: HashMap<u32, Value<'a>>,
    items: Vec<Value<'a>>,
    dicts: Vec<Vec<(Value<'a>, Value<'a>)>>,
    /// Class, key, number of elements.
    storages: Vec<(&'a str, &'a str, u64)>,
    tensors: Vec<Stored<'a>>,
    made: usize,
}

fn fail<T>(detail: impl Into<String>) -> Step<T> {
    Err(Some(detail.into()))
}

impl<'a> Machine<'a> {
    /// Run one opcode; `true` at the end.
    fn step(&mut self, opcode: u8) -> Step<bool> {
        match opcode {
            0x80 => match self.input.u8().ok_or(None)? {
                2..=5 => {} // PROTO
                n => return fail(format!("pickle protocol {n}, expected 2 to 5")),
            },
            0x95 => drop(self.input.u64().ok_or(None)?), // FRAME: a hint for buffering
            b'.' => return Ok(true),                     // STOP
            b'(' => {
                self.count()?;
                self.marks.push(self.stack.len()); // MARK
            }
            b'N' => self.push(Value::None)?,
            0x88 | 0x89 => self.push(Value::Bool)?, // NEWTRUE, NEWFALSE
            b'K' => {
                let n = self.input.u8().ok_or(None)?; // BININT1
                self.push(Value::Int(n.into()))?;
            }
            b'M' => {
                let n = self.input.u16().ok_or(None)?; // BININT2
                self.push(Value::Int(n.into()))?;
            }
            b'J' => {
                let n = self.input.u32().ok_or(None)?; // BININT
                self.push(Value::Int((n as i32).into()))?;
            }
            0x8a => {
                let n = self.input.u8().ok_or(None)?; // LONG1
                self.long(n)?;
            }
            b'X' => {
                let n = self.input.u32().ok_or(None)?; // BINUNICODE
                self.text(n.into())?;
            }
            0x8c => {
                let n = self.input.u8().ok_or(None)?; // SHORT_BINUNICODE
                self.text(n.into())?;
            }
            0x8d => {
                let n = self.input.u64().ok_or(None)?; // BINUNICODE8
                self.text(n)?;
            }
            b')' => self.push(Value::Tuple(self.items.len(), 0))?, // EMPTY_TUPLE
            0x85..=0x87 => self.tuple_of(usize::from(opcode - 0x84))?, // TUPLE1 to TUPLE3
            b't' => {
                let mark = self.pop_mark()?; // TUPLE
                self.tuple_of(self.stack.len() - mark)?;
            }
            b'}' => self.empty_dict()?, // EMPTY_DICT
            b's' => {
                let at = self.stack.len().checked_sub(2).ok_or(None)?; // SETITEM
                self.set_items(at)?;
            }
            b'u' => {
                let mark = self.pop_mark()?; // SETITEMS
                self.set_items(mark)?;
            }
            b'q' => {
                let n = self.input.u8().ok_or(None)?; // BINPUT
                self.memoize(n.into())?;
            }
            b'r' => {
                let n = self.input.u32().ok_or(None)?; // LONG_BINPUT
                self.memoize(n)?;
            }
            0x94 => self.memoize(self.memo.len() as u32)?, // MEMOIZE
            b'h' => {
                let n = self.input.u8().ok_or(None)?; // BINGET
                self.recall(n.into())?;
            }
            b'j' => {
                let n = self.input.u32().ok_or(None)?; // LONG_BINGET
                self.recall(n)?;
            }
            b'c' => {
                let module = self.input.line().ok_or(None)?; // GLOBAL
                let name = self.input.line().ok_or(None)?;
                self.global(module, name)?;
            }
            0x93 => match (self.pop()?, self.pop()?) {
                // STACK_GLOBAL
                (Value::Str(name), Value::Str(module)) => self.global(module, name)?,
                _ => return fail("a class name that is not a str"),
            },
            b'Q' => self.persistent_id()?, // BINPERSID
            b'R' => self.reduce()?,        // REDUCE
            b'b' => {
                // BUILD: a module's state_dict carries `_metadata`, which says nothing we need.
                match (self.pop()?, self.stack.last()) {
                    (Value::Dict(_), Some(Value::Dict(_))) => {}
                    (state, _) => return fail(format!("BUILD with {}", state.kind())),
                }
            }
            _ => {
                return fail(format!(
                    "opcode {opcode:#04x} is not one that torch.save writes for a dict of tensors"
                ));
            }
        }
        Ok(false)
    }

    /// Every value made counts, wherever it is kept.
    fn count(&mut self) -> Step<()> {
        self.made += 1;
        if self.made > MAX_VALUES {
            return fail(format!("makes more than {MAX_VALUES} values"));
        }
        Ok(())
    }

    fn push(&mut self, value: Value<'a>) -> Step<()> {
        self.count()?;
        self.stack.push(value);
        Ok(())
    }

    /// The topmost value, which must lie above the last MARK.
    fn pop(&mut self) -> Step<Value<'a>> {
        if self
            .marks
            .last()
            .is_some_and(|&mark| mark == self.stack.len())
        {
            return Err(None);
        }
        self.stack.pop().ok_or(None)
    }

    fn pop_mark(&mut self) -> Step<usize> {
        self.marks.pop().ok_or(None)
    }

    fn long(&mut self, n: u8) -> Step<()> {
        let bytes = self.input.take(n.into()).ok_or(None)?;
        if n > 8 {
            return fail(format!("an int of {n} bytes"));
        }
        // Two's complement, shortest form: fill up with copies of the sign.
        let negative = bytes.last().is_some_and(|&b| b >= 0x80);
        let mut whole = [if negative { 0xff } else { 0 }; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        self.push(Value::Int(i64::from_le_bytes(whole)))
    }

    fn text(&mut self, n: u64) -> Step<()> {
        let bytes = usize::try_from(n)
            .ok()
            .and_then(|n| self.input.take(n))
            .ok_or(None)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => self.push(Value::Str(text)),
            Err(e) => fail(format!("a str that is not UTF-8: {e}")),
        }
    }

    fn tuple_of(&mut self, n: usize) -> Step<()> {
        let from = self.stack.len().checked_sub(n).ok_or(None)?;
        if self.marks.last().is_some_and(|&mark| mark > from) {
            return Err(None);
        }
        let start = self.items.len();
        self.items.extend(self.stack.drain(from..));
        self.push(Value::Tuple(start, n))
    }

    fn tuple(&self, value: Value<'a>) -> Step<&[Value<'a>]> {
        match value {
            Value::Tuple(start, n) => Ok(&self.items[start..start + n]),
            other => fail(format!("{} where a tuple is expected", other.kind())),
        }
    }

    fn empty_dict(&mut self) -> Step<()> {
        self.dicts.push(Vec::new());
        self.push(Value::Dict(self.dicts.len() - 1))
    }

    /// Move the pairs above `at` into the dict below them.
    fn set_items(&mut self, at: usize) -> Step<()> {
        let below = at.checked_sub(1).ok_or(None)?;
        if self.marks.last().is_some_and(|&mark| mark > below) {
            return Err(None);
        }
        let Value::Dict(dict) = self.stack[below] else {
            return fail(format!("items are set in {}", self.stack[below].kind()));
        };
        if !(self.stack.len() - at).is_multiple_of(2) {
            return fail("a dict key without a value");
        }
        let pairs = self.stack[at..]
            .chunks_exact(2)
            .map(|pair| (pair[0], pair[1]));
        self.dicts[dict].extend(pairs);
        self.stack.truncate(at);
        Ok(())
    }

    fn memoize(&mut self, index: u32) -> Step<()> {
        let value = *self.stack.last().ok_or(None)?;
        self.count()?;
        self.memo.insert(index, value);
        Ok(())
    }

    fn recall(&mut self, index: u32) -> Step<()> {
        match self.memo.get(&index) {
            Some(&value) => self.push(value),
            None => fail(format!("memo {index} was never set")),
        }
    }

    fn global(&mut self, module: &'a str, name: &'a str) -> Step<()> {
        let value = match (module, name) {
            ("collections", "OrderedDict") => Value::Callable(Callable::OrderedDict),
            ("torch._utils", "_rebuild_tensor_v2") => Value::Callable(Callable::RebuildTensor),
            ("torch._utils", "_rebuild_parameter") => Value::Callable(Callable::RebuildParameter),
            ("torch", class) if class.ends_with("Storage") => Value::StorageClass(class),
            _ => {
                let what = sentence::name(&format!("{module}.{name}"));
                return fail(format!(
                    "`{what}` is not one of the functions a dict of tensors needs; nothing is run"
                ));
            }
        };
        self.push(value)
    }

    fn persistent_id(&mut self) -> Step<()> {
        let id = self.pop()?;
        let (class, key, numel) = match *self.tuple(id)? {
            [
                Value::Str("storage"),
                Value::StorageClass(class),
                Value::Str(key),
                Value::Str(_), // where it was: cpu, cuda:0
                Value::Int(numel),
            ] => (class, key, numel),
            _ => return fail("a persistent id that is not a storage"),
        };
        let Ok(numel) = u64::try_from(numel) else {
            let key = sentence::name(key);
            return fail(format!("storage `{key}` has {numel} elements"));
        };
        self.storages.push((class, key, numel));
        self.push(Value::Storage(self.storages.len() - 1))
    }

    fn reduce(&mut self) -> Step<()> {
        let (args, callable) = (self.pop()?, self.pop()?);
        let Value::Callable(callable) = callable else {
            return fail(format!("REDUCE of {}", callable.kind()));
        };
        let args = self.tuple(args)?;
        match (callable, args) {
            (Callable::OrderedDict, []) => self.empty_dict(),
            (Callable::RebuildParameter, [tensor @ Value::Tensor(_), Value::Bool, _]) => {
                let tensor = *tensor;
                self.push(tensor)
            }
            (
                Callable::RebuildTensor,
                &[
                    Value::Storage(storage),
                    Value::Int(offset),
                    shape,
                    strides,
                    Value::Bool,
                    _,
                    ..,
                ],
            ) => {
                let (class, key, numel) = self.storages[storage];
                let (shape, strides) = (self.sizes(shape)?, self.sizes(strides)?);
                let offset = match u64::try_from(offset) {
                    Ok(offset) if shape.len() == strides.len() => offset,
                    _ => return fail("a tensor with impossible offset or strides"),
                };
                self.tensors.push(Stored {
                    class,
                    key,
                    numel,
                    offset,
                    shape,
                    strides,
                });
                self.push(Value::Tensor(self.tensors.len() - 1))
            }
            _ => fail(format!(
                "{callable:?} with arguments that torch.save does not write"
            )),
        }
    }

    fn sizes(&self, value: Value<'a>) -> Step<Vec<usize>> {
        let items = self.tuple(value)?;
        if items.len() > MAX_RANK {
            return fail(format!("a tensor of {} dimensions", items.len()));
        }
        let size = |item: &Value| match item {
            Value::Int(n) => usize::try_from(*n).or_else(|_| fail(format!("a size of {n}"))),
            other => fail(format!("{} where a size is expected", other.kind())),
        };
        items.iter().map(size).collect()
    }

    /// What STOP leaves must be one dict of tensors.
    fn finish(mut self) -> Result<Vec<(&'a str, Stored<'a>)>, String> {
        if self.input.len() != 0 {
            return Err(format!(
                "{} bytes follow the end of the pickle",
                self.input.len()
            ));
        }
        let dict = match self.stack[..] {
            [only] if self.marks.is_empty() => match only {
                Value::Dict(dict) => std::mem::take(&mut self.dicts[dict]),
                other => return Err(format!("{}, expected a dict of tensors", other.kind())),
            },
            _ => return Err("the pickle leaves more or less than one value".into()),
        };
        let mut names = std::collections::HashSet::new();
        let entry = |(key, value)| match (key, value) {
            (Value::Str(name), Value::Tensor(_)) if !names.insert(name) => {
                Err(format!("tensor `{}` comes twice", sentence::name(name)))
            }
            (Value::Str(name), Value::Tensor(i)) => Ok((name, self.tensors[i].clone())),
            (Value::Str(name), v) => {
                let name = sentence::name(name);
                Err(format!("`{name}` is {}, expected a tensor", v.kind()))
            }
            (key, _) => Err(format!("a key is {}, expected a str", key.kind())),
        };
        dict.into_iter().map(entry).collect()
    }
}
