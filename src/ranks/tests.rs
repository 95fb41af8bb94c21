use super::*;
use crate::backend::Wire;
use board::Posts;
use std::time::Duration;

const LIMITS: Limits = Limits {
    page_size: 1,
    n_pages: 4,
    max_positions: 4,
    max_rows: 1,
    max_wanted: 1,
    vocab_size: 1,
};

/// A rank's part of a cache: pages of `width` bytes.
pub(super) struct Pages {
    bytes: Vec<u8>,
    pub width: usize,
}

impl Pages {
    /// `n` pages whose bytes count up from `first`.
    pub fn counting_from(first: u8, n: usize, width: usize) -> Pages {
        let bytes = (0..n * width).map(|i| first.wrapping_add(i as u8));
        Pages {
            bytes: bytes.collect(),
            width,
        }
    }

    fn of(&self, page: u32) -> std::ops::Range<usize> {
        let first = page as usize * self.width;
        first..first + self.width
    }

    pub fn copy(&mut self, pairs: &[(u32, u32)]) {
        for &(from, to) in pairs {
            let (from, to) = (self.of(from), self.of(to));
            self.bytes.copy_within(from, to.start);
        }
    }

    pub fn save(&self, pages: &[u32], to: &mut [u8]) {
        for (&page, to) in pages.iter().zip(to.chunks_exact_mut(self.width)) {
            to.copy_from_slice(&self.bytes[self.of(page)]);
        }
    }

    pub fn load(&mut self, pages: &[u32], from: &[u8]) {
        for (&page, from) in pages.iter().zip(from.chunks_exact(self.width)) {
            let at = self.of(page);
            self.bytes[at].copy_from_slice(from);
        }
    }
}

/// A rank that exchanges the numbers of its steps' tokens.
struct Fake {
    pages: Pages,
    wire: Posts,
    sum: Vec<f32>,
    fails_at: Option<i32>,
}

impl Run for Fake {
    fn submit(&mut self, step: &Step, _: &Choices) -> Result<()> {
        if self.wire.rank() == 1 && self.fails_at == Some(step.tokens[0]) {
            return Err(Error::Device("out of order".into()));
        }
        if self.wire.rank() == 1 && self.fails_at == Some(-step.tokens[0]) {
            panic!("out of its mind");
        }
        let mine = vec![step.tokens[0] as f32; self.wire.rank() + 1];
        let sum = &mut self.sum;
        self.wire.all_gather(&mine, &|rank| rank + 1, &mut |parts| {
            *sum = vec![parts.iter().flat_map(|part| part.iter()).sum()];
        })
    }

    fn collect(&mut self) -> Result<Answer<'_>> {
        Ok(Answer::Logits(&self.sum))
    }

    fn copy_pages(&mut self, pairs: &[(u32, u32)]) -> Result<()> {
        self.pages.copy(pairs);
        Ok(())
    }

    fn page_bytes(&self) -> usize {
        self.pages.width
    }

    fn save_pages(&mut self, pages: &[u32], to: &mut [u8]) -> Result<()> {
        self.pages.save(pages, to);
        Ok(())
    }

    fn load_pages(&mut self, pages: &[u32], from: &[u8]) -> Result<()> {
        self.pages.load(pages, from);
        Ok(())
    }

    fn limits(&self) -> Limits {
        LIMITS
    }
}

/// Ranks whose pages have `widths` bytes; all bytes of all pages differ.
fn ranks(widths: &[usize], fails_at: Option<i32>) -> Ranks {
    const PAGES: usize = 4;
    let figures = Arc::new(figures::Figures::new(widths.len()));
    let board = Board::new(widths.len(), 4, Duration::from_secs(60), figures).unwrap();
    let mut next = 0;
    let fakes = widths.iter().enumerate().map(|(number, &width)| {
        let pages = Pages::counting_from(next, PAGES, width);
        next += (PAGES * width) as u8;
        let fake = Fake {
            pages,
            wire: board.wire(number),
            sum: Vec::new(),
            fails_at,
        };
        Rank {
            run: Box::new(fake),
            processors: None,
        }
    });
    let fakes = fakes.collect();
    Ranks::new(fakes, board).unwrap()
}

fn step(token: i32) -> Step {
    Step {
        tokens: vec![token],
        ..Step::default()
    }
}

fn sum(ranks: &mut Ranks, token: i32) -> Result<f32> {
    Ok(ranks.run(&step(token), Choices::NONE)?.logits()[0])
}

#[test]
fn all_ranks_take_every_step() {
    for n in 1..=4 {
        let mut ranks = ranks(&vec![3; n], None);
        let shares: usize = (1..=n).sum();
        for token in 1..100 {
            let want = (token as usize * shares) as f32;
            assert_eq!(sum(&mut ranks, token).unwrap(), want);
        }
    }
}

#[test]
fn pages_lie_in_parts() {
    let mut ranks = ranks(&[3, 5, 2], None);
    assert_eq!(ranks.page_bytes(), 10);
    let mut saved = vec![0; 20];
    ranks.save_pages(&[2, 0], &mut saved).unwrap();
    let page = |page: u8| -> Vec<u8> {
        let parts = [(0, 3), (12, 5), (32, 2)];
        let part = |(first, width): (u8, u8)| (first + page * width..).take(width.into());
        parts.into_iter().flat_map(part).collect()
    };
    assert_eq!(saved, [page(2), page(0)].concat());
    // Page 1 gets the content of page 2, and page 3 gets it by a copy.
    ranks.load_pages(&[1], &saved[..10]).unwrap();
    ranks.copy_pages(&[(1, 3)]).unwrap();
    let mut again = vec![0; 20];
    ranks.save_pages(&[3, 0], &mut again).unwrap();
    assert_eq!(again, saved);
}

#[test]
fn a_failure_of_a_rank_is_everybodys() {
    for fails_at in [7, -7] {
        let mut ranks = ranks(&[3, 3], Some(fails_at));
        for token in 1..7 {
            assert_eq!(sum(&mut ranks, token).unwrap(), 3.0 * token as f32);
        }
        let sentence = sum(&mut ranks, 7).unwrap_err().to_string();
        let want = match fails_at {
            7 => "rank 1: out of order",
            _ => "internal error: rank 1: out of its mind",
        };
        assert_eq!(sentence, want);
        // Every later call fails in the same way.
        assert_eq!(sum(&mut ranks, 8).unwrap_err().to_string(), want);
        let saved = ranks.save_pages(&[0], &mut [0; 6]);
        assert_eq!(saved.unwrap_err().to_string(), want);
        let loaded = ranks.load_pages(&[0], &[0; 6]);
        assert_eq!(loaded.unwrap_err().to_string(), want);
    }
}

/// Rank 1 waits for rank 0, which ends instead.
#[test]
fn nobody_waits_for_a_rank_that_has_gone() {
    let mut ranks = ranks(&[3, 3, 3], None);
    ranks.begin(&step(1), Choices::NONE).unwrap();
    std::thread::sleep(Duration::from_millis(10));
    drop(ranks);
}

/// A rank that keeps the adapters of its last step, as a backend does until the answer is read.
struct Keeps {
    number: usize,
    sees: Arc<std::sync::Mutex<Vec<(usize, usize)>>>,
}

impl Run for Keeps {
    fn submit(&mut self, step: &Step, _: &Choices) -> Result<()> {
        let mut sees = self.sees.lock().unwrap();
        for adapter in step.adapters.iter().flatten() {
            // The number of matrices tells whose part it is.
            sees.push((self.number, adapter.matrices.len()));
        }
        Ok(())
    }

    fn collect(&mut self) -> Result<Answer<'_>> {
        Ok(Answer::Logits(&[]))
    }

    fn copy_pages(&mut self, _: &[(u32, u32)]) -> Result<()> {
        Ok(())
    }

    fn page_bytes(&self) -> usize {
        1
    }

    fn save_pages(&mut self, _: &[u32], _: &mut [u8]) -> Result<()> {
        Ok(())
    }

    fn load_pages(&mut self, _: &[u32], _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn limits(&self) -> Limits {
        LIMITS
    }
}

#[test]
fn each_rank_has_its_own_part_of_an_adapter_and_all_are_freed_together() {
    use crate::backend::Adapter;
    let n = 3;
    let figures = Arc::new(figures::Figures::new(n));
    let board = Board::new(n, 4, Duration::from_secs(60), figures).unwrap();
    let sees: Arc<std::sync::Mutex<Vec<_>>> = Arc::default();
    let rank = |number| Rank {
        run: Box::new(Keeps {
            number,
            sees: sees.clone(),
        }),
        processors: None,
    };
    let mut ranks = Ranks::new((0..n).map(rank).collect(), board).unwrap();
    let freed = Arc::new(());
    let part = |number: usize| Adapter {
        id: 0,
        matrices: (0..number).map(|_| Default::default()).collect(),
        on_device: Some(Box::new(freed.clone())),
        on_ranks: None,
    };
    let whole = Arc::new(adapters::whole((0..n).map(part).collect(), 7));
    assert_eq!((whole.id, Arc::strong_count(&freed)), (7, 1 + n));
    let mut of_adapter = step(1);
    of_adapter.adapters = vec![None, Some(whole.clone())];
    ranks.run(&of_adapter, Choices::NONE).unwrap();
    ranks.run(&step(2), Choices::NONE).unwrap();
    drop(ranks);
    let mut seen = sees.lock().unwrap().clone();
    seen.sort_unstable();
    assert_eq!(seen, [(0, 0), (1, 1), (2, 2)]);
    drop(whole);
    assert_eq!(Arc::strong_count(&freed), 1 + n, "the step still has it");
    drop(of_adapter);
    assert_eq!(Arc::strong_count(&freed), 1);
    // An adapter of one rank cannot run on several.
    let alone = adapters::whole(vec![part(0)], 1);
    let mut of_adapter = step(1);
    of_adapter.adapters = vec![Some(Arc::new(alone))];
    let error = adapters::put_parts(&of_adapter.adapters, 1, &mut Vec::new());
    let error = error.unwrap_err().to_string();
    assert_eq!(error, "internal error: Adapter 1 is not on rank 1");
}
