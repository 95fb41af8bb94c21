//! The limits of what a template may use, and the meter that counts it.
//!
//! A template is a program that came with a download. It ends within [`MAX_STEPS`] steps, and makes
//! at most [`MADE`] bytes, plus [`MADE_PER_INPUT`] for each byte of its input. Bytes count when
//! they are made, and are never given back. So a loop that makes and drops texts ends too.

use super::fault::{Fault, Kind, Result};
use crate::Cancel;

/// The most bytes of a template.
pub const MAX_TEMPLATE: usize = 1 << 20;
/// The most levels of brackets and statements in a template, and of macros that call each other.
pub const MAX_NESTING: usize = 200;
/// The most levels of expressions and statements that are being evaluated at once. A level takes
/// less than a kilobyte of stack. A level of [`MAX_NESTING`] takes five in the parser.
pub const MAX_DEPTH: usize = 600;
/// The most levels of lists within lists. Data have at most 128, which is serde_json's limit.
pub const MAX_VALUE_DEPTH: u32 = 400;
/// The most steps. Each expression, statement and element is one step, and so are each
/// [`STEP_BYTES`] that a text operation looks at.
pub const MAX_STEPS: u64 = 5_000_000;
/// How many bytes a text operation looks at for one step.
pub const STEP_BYTES: usize = 256;
/// How many bytes may be made even without input.
pub const MADE: u64 = 64 << 20;
/// How many more bytes may be made for each byte of messages, tools and variables.
pub const MADE_PER_INPUT: u64 = 16;
/// The most bytes of the rendered text.
pub const MAX_OUTPUT: usize = 64 << 20;
/// The most elements of a `range`, as in jinja2's sandbox.
pub const MAX_RANGE: i128 = 100_000;

/// The most arguments of a call that are given by name. They are compared with each other.
pub const MAX_NAMED: usize = 1000;

/// How many steps lie between two looks at the cancel flag.
const LOOK: u64 = 1000;
/// How many names a search may pass without a step of its own.
const NAMES_FREE: usize = 16;
/// How many bytes a name that a search passes counts as.
const NAME_BYTES: usize = 16;

// Values are reference-counted, and stable Rust cannot allocate such an object fallibly. So memory
// is asked for and given back each time before objects have taken this much.
const UNASKED: usize = 1 << 20;
/// The least that is counted for a call of `make`: a text or a list, and its reference counts.
const OBJECT_BYTES: usize = 256;
/// How much is asked for. This is more than objects take until the next time.
const HEADROOM: usize = 2 * UNASKED;

/// Counts the steps and bytes that are left.
pub struct Meter<'c> {
    steps: u64,
    /// Look at the flag when `steps` has fallen to this.
    look: u64,
    bytes: u64,
    all_bytes: u64,
    /// How many bytes may be made until memory is asked for again.
    unasked: usize,
    cancel: Option<&'c Cancel>,
}

impl<'c> Meter<'c> {
    /// A full meter for `input` bytes of messages, tools and variables.
    pub fn new(input: usize, cancel: Option<&'c Cancel>) -> Self {
        let bytes = MADE + MADE_PER_INPUT * input as u64;
        Meter {
            steps: MAX_STEPS,
            look: MAX_STEPS,
            bytes,
            all_bytes: bytes,
            unasked: 0,
            cancel,
        }
    }

    /// Steps taken and bytes made so far.
    pub fn used(&self) -> (u64, u64) {
        (MAX_STEPS - self.steps, self.all_bytes - self.bytes)
    }

    /// Counts one step.
    #[inline]
    pub fn step(&mut self) -> Result<()> {
        self.steps(1)
    }

    /// Counts the steps of looking at `bytes` of text, or at as many bytes of a list.
    #[inline]
    pub fn look_at(&mut self, bytes: usize) -> Result<()> {
        self.steps(1 + (bytes / STEP_BYTES) as u64)
    }

    /// Counts the steps of searching through `n` names.
    #[inline]
    pub fn look_through(&mut self, n: usize) -> Result<()> {
        match n > NAMES_FREE {
            true => self.look_at(n.saturating_mul(NAME_BYTES)),
            false => Ok(()),
        }
    }

    #[inline]
    fn steps(&mut self, n: u64) -> Result<()> {
        match self.steps.checked_sub(n) {
            Some(left) if left > self.look => {
                self.steps = left;
                Ok(())
            }
            left => self.at_a_mark(left),
        }
    }

    #[cold]
    fn at_a_mark(&mut self, left: Option<u64>) -> Result<()> {
        let Some(left) = left else {
            return Err(Fault::at(
                0,
                Kind::Limit,
                format!("the template takes more than {MAX_STEPS} steps"),
            ));
        };
        self.steps = left;
        self.look = left.saturating_sub(LOOK);
        match self.cancel {
            Some(cancel) if cancel.is_triggered() => {
                Err(Fault::at(0, Kind::Cancelled, "cancelled"))
            }
            _ => Ok(()),
        }
    }

    /// Charges `n` bytes that are about to be made, and the steps of writing them.
    #[inline]
    pub fn make(&mut self, n: usize) -> Result<()> {
        match self.bytes.checked_sub(n as u64) {
            Some(left) => self.bytes = left,
            None => {
                return Err(Fault::at(
                    0,
                    Kind::Limit,
                    format!("the template makes more than {} bytes", self.all_bytes),
                ));
            }
        }
        match self.unasked.checked_sub(n.saturating_add(OBJECT_BYTES)) {
            Some(left) => self.unasked = left,
            None => self.ask()?,
        }
        match n < STEP_BYTES {
            true => Ok(()),
            false => self.look_at(n),
        }
    }

    #[cold]
    fn ask(&mut self) -> Result<()> {
        self.unasked = UNASKED;
        room(HEADROOM)
    }

    /// An empty list with room for `n` elements, charged.
    pub fn list<T>(&mut self, n: usize) -> Result<Vec<T>> {
        self.make(n.saturating_mul(size_of::<T>()))?;
        let mut list = Vec::new();
        match list.try_reserve_exact(n) {
            Ok(()) => Ok(list),
            Err(_) => Err(no_memory(n.saturating_mul(size_of::<T>()))),
        }
    }

    /// Appends an element, and charges it.
    #[inline]
    pub fn push<T>(&mut self, list: &mut Vec<T>, element: T) -> Result<()> {
        self.make(size_of::<T>())?;
        if list.len() == list.capacity() {
            let more = 1 + self.spare(list.len().max(3), size_of::<T>());
            list.try_reserve_exact(more)
                .map_err(|_| no_memory((list.len() + more) * size_of::<T>()))?;
        }
        list.push(element);
        Ok(())
    }

    /// Appends text, and charges it.
    #[inline]
    pub fn write(&mut self, text: &mut String, more: &str) -> Result<()> {
        self.make(more.len())?;
        if text.capacity() - text.len() < more.len() {
            let bytes = more.len() + self.spare(text.len(), 1);
            text.try_reserve_exact(bytes)
                .map_err(|_| no_memory(text.len() + bytes))?;
        }
        text.push_str(more);
        Ok(())
    }

    /// How many elements a buffer of `len` gets room for beyond what is needed: as many again, so
    /// that growing takes linear time, but no more than could still be made.
    fn spare(&self, len: usize, element: usize) -> usize {
        let left = self.bytes / element.max(1) as u64;
        len.min(usize::try_from(left).unwrap_or(usize::MAX))
    }

    /// Appends `n` times `c`, which are charged beforehand.
    pub fn fill(&mut self, text: &mut String, c: char, n: usize) -> Result<()> {
        let bytes = n.saturating_mul(c.len_utf8());
        self.make(bytes)?;
        text.try_reserve(bytes).map_err(|_| no_memory(bytes))?;
        text.extend(std::iter::repeat_n(c, n));
        Ok(())
    }
}

/// Asks for `bytes` and gives them back, for code that cannot be told that memory is short.
pub fn room(bytes: usize) -> Result<()> {
    Vec::<u8>::new()
        .try_reserve_exact(bytes)
        .map_err(|_| no_memory(bytes))
}

/// The fault for memory that the system does not give.
pub fn no_memory(bytes: usize) -> Box<Fault> {
    let message = "the system refuses memory for the chat template";
    let mut fault = Fault::at(0, Kind::Memory, message);
    fault.bytes = bytes as u64;
    fault
}
