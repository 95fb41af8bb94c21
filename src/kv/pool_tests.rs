//! The pool without a backend: what is shared, what is free, and what is found.

use super::*;

/// With numbers for all pages, as for a sequence that has come to its end.
fn reserve(pool: &mut Pool, hits: &[Hit], total: usize) -> Option<Table> {
    let mut table = pool.reserve(hits, total).unwrap()?;
    pool.grow(&mut table, total);
    Some(table)
}

fn find_all(pool: &Pool, salt: u64, tokens: &[Token]) -> Vec<Hit> {
    let root = Root { salt, adapter: 0 };
    pool.find_all(root, tokens).unwrap()
}

/// Hold fresh pages for `tokens`, fill and publish them without a salt.
fn write(pool: &mut Pool, tokens: &[Token]) -> Table {
    write_salted(pool, 0, tokens)
}

fn write_salted(pool: &mut Pool, salt: u64, tokens: &[Token]) -> Table {
    let pages = reserve(pool, &[], tokens.len() / pool.page_size()).unwrap();
    let mut parent = NodeId::Root(Root { salt, adapter: 0 });
    for (page, text) in pages.iter().zip(tokens.chunks_exact(pool.page_size())) {
        parent = pool.publish(parent, text, *page);
    }
    pages
}

#[test]
fn a_page_is_found_by_all_tokens_before_it_not_by_its_own_alone() {
    let mut pool = Pool::new(8, 2).unwrap();
    let pages = write(&mut pool, &[1, 2, 3, 4, 5, 6]);
    let found = |tokens: &[Token]| {
        find_all(&pool, 0, tokens)
            .iter()
            .map(|hit| hit.page)
            .collect::<Vec<_>>()
    };
    assert_eq!(found(&[1, 2, 3, 4, 5, 6, 7]), pages[..]);
    assert_eq!(found(&[1, 2, 3, 4, 5]), pages[..2]);
    assert_eq!(found(&[1, 2, 9, 4, 5, 6]), pages[..1]);
    assert!(found(&[9, 2, 3, 4]).is_empty());
    assert!(found(&[3, 4]).is_empty());
    assert!(found(&[1]).is_empty());
}

#[test]
fn idle_pages_are_found_again_and_the_oldest_end_of_a_text_is_reclaimed_first() {
    let mut pool = Pool::new(4, 2).unwrap();
    let [old, new] = [&[1, 2, 3, 4][..], &[5, 6]].map(|text| {
        let mut table = write(&mut pool, text);
        let pages = table.to_vec();
        pool.release(&mut table);
        pages
    });
    assert_eq!(pool.used(), 0);

    // One page was never used; the second comes from the end of the older text.
    let mut taken = reserve(&mut pool, &[], 2).unwrap();
    assert!(taken.contains(&old[1]));
    assert_eq!(find_all(&pool, 0, &[1, 2, 3, 4]).len(), 1);
    assert_eq!(find_all(&pool, 0, &[5, 6]).len(), 1);

    // What a sequence holds is never reclaimed, and holding counts as use.
    let hits = find_all(&pool, 0, &[1, 2]);
    assert!(
        reserve(&mut pool, &hits, 3).is_none(),
        "one free page besides the hit"
    );
    assert_eq!(pool.used(), 2, "a refused reservation changes nothing");
    let mut held = reserve(&mut pool, &hits, 2).unwrap();
    assert_eq!(held[..], [old[0], new[0]]);
    assert!(find_all(&pool, 0, &[5, 6]).is_empty());
    assert!(reserve(&mut pool, &[], 1).is_none());

    pool.release(&mut held);
    pool.release(&mut taken);
    assert_eq!(pool.used(), 0);
}

#[test]
fn a_shared_page_is_held_until_the_last_holder_lets_go() {
    let mut pool = Pool::new(2, 1).unwrap();
    let mut first = write(&mut pool, &[7]);
    let hits = find_all(&pool, 0, &[7]);
    let mut second = reserve(&mut pool, &hits, 1).unwrap();
    assert_eq!(first[..], second[..]);
    pool.release(&mut first);
    assert_eq!(pool.used(), 1);
    pool.release(&mut second);
    assert_eq!(pool.used(), 0);
    assert_eq!(find_all(&pool, 0, &[7]).len(), 1);
}

#[test]
fn of_two_equal_pages_the_first_stays_findable_and_the_second_is_freed() {
    let mut pool = Pool::new(2, 1).unwrap();
    let mut first = write(&mut pool, &[7]);
    let mut second = write(&mut pool, &[7]);
    let page = second[0];
    pool.release(&mut second);
    assert_eq!(find_all(&pool, 0, &[7])[0].page, first[0]);
    pool.release(&mut first);
    assert_eq!(reserve(&mut pool, &[], 1).unwrap()[..], [page]);
    assert_eq!(find_all(&pool, 0, &[7]).len(), 1);
}

#[test]
fn a_page_is_found_only_with_the_salt_that_it_was_published_under() {
    let mut pool = Pool::new(8, 2).unwrap();
    let plain = write(&mut pool, &[1, 2, 3, 4]);
    let salted = write_salted(&mut pool, 7, &[1, 2, 3, 4]);
    let found = |salt: u64| {
        let hits = find_all(&pool, salt, &[1, 2, 3, 4]);
        hits.iter().map(|hit| hit.page).collect::<Vec<_>>()
    };
    assert_eq!(found(0), plain[..]);
    assert_eq!(found(7), salted[..]);
    assert!(found(8).is_empty());
}

#[test]
fn a_fork_shares_full_pages_and_has_the_one_that_is_being_filled_copied() {
    let mut pool = Pool::new(8, 2).unwrap();
    let mut parent = reserve(&mut pool, &[], 4).unwrap();
    let mut child = reserve(&mut pool, &[], 4).unwrap();
    let own = child.to_vec();
    assert_eq!(pool.used(), 8);

    // Five positions: two full pages and one position of the third.
    assert_eq!(pool.fork(&parent, &mut child, 5), Some((parent[2], own[2])));
    assert_eq!(child[..], [parent[0], parent[1], own[2], own[3]]);
    assert_eq!(pool.used(), 6, "the child has let two pages go");
    pool.release(&mut parent);
    assert_eq!(pool.used(), 4, "what the child holds stays");
    pool.release(&mut child);
    assert_eq!(pool.used(), 0);

    // At the end of a page there is nothing to copy, and before the first position nothing at all.
    let mut parent = reserve(&mut pool, &[], 3).unwrap();
    let mut child = reserve(&mut pool, &[], 3).unwrap();
    assert_eq!(pool.fork(&parent, &mut child, 0), None);
    assert_eq!(pool.fork(&parent, &mut child, 4), None);
    assert_eq!(child[..2], parent[..2]);
    assert_ne!(child[2], parent[2]);
    // Once more: what is shared already is held once by each.
    assert_eq!(
        pool.fork(&parent, &mut child, 5),
        Some((parent[2], child[2]))
    );
    pool.release(&mut child);
    pool.release(&mut parent);
    assert_eq!(pool.used(), 0);
}

#[test]
fn a_page_that_a_fork_shares_goes_idle_when_the_last_holder_lets_it_go() {
    let mut pool = Pool::new(4, 2).unwrap();
    let mut parent = write(&mut pool, &[1, 2]);
    let mut child = reserve(&mut pool, &[], 1).unwrap();
    assert_eq!(pool.fork(&parent, &mut child, 2), None);
    pool.release(&mut parent);
    let (used, hits) = (pool.used(), find_all(&pool, 0, &[1, 2]));
    assert_eq!((used, hits.len()), (1, 1));
    pool.release(&mut child);
    assert_eq!(pool.used(), 0);
    assert_eq!(find_all(&pool, 0, &[1, 2]).len(), 1);
}

#[test]
fn pages_that_are_written_lie_side_by_side_whatever_was_promised() {
    let mut pool = Pool::new(64, 1).unwrap();
    let promise = |pool: &mut Pool, n| pool.reserve(&[], n).unwrap();
    let mut tables: Vec<Table> = (0..4).map(|_| promise(&mut pool, 16).unwrap()).collect();
    assert_eq!(pool.used(), 64, "what is promised is not for others");
    assert!(promise(&mut pool, 1).is_none());
    for n in 1..=3 {
        for table in &mut tables {
            pool.grow(table, n);
        }
    }
    let mut pages: Vec<u32> = tables
        .iter()
        .flat_map(|table| table.iter().copied())
        .collect();
    pages.sort_unstable();
    assert!(pages.iter().copied().eq(0..12), "{pages:?}");

    // Who comes next writes where those before have written.
    pool.release(&mut tables[1]);
    let mut next = promise(&mut pool, 16).unwrap();
    pool.grow(&mut next, 3);
    assert!(next.iter().all(|page| *page < 12), "{next:?}");
    pool.release(&mut next);
    for table in &mut tables {
        pool.release(table);
    }
    assert_eq!(pool.used(), 0);
}

#[test]
fn what_is_cached_is_reclaimed_for_what_is_written_and_not_for_what_is_promised() {
    let mut pool = Pool::new(4, 1).unwrap();
    let mut cached = write(&mut pool, &[1, 2, 3]);
    pool.release(&mut cached);
    let mut table = pool.reserve(&[], 4).unwrap().unwrap();
    pool.grow(&mut table, 2);
    let found = find_all(&pool, 0, &[1, 2, 3]);
    assert_eq!(found.len(), 2, "one page was never used");
    assert!(pool.reserve(&found, 2).unwrap().is_none());
    // Found pages count for what was promised.
    pool.adopt(&mut table, 2, found[0].page);
    pool.grow(&mut table, 4);
    assert_eq!((pool.used(), table[2]), (4, found[0].page));
    pool.release(&mut table);
    assert_eq!(pool.used(), 0);
}

/// A sequence of the next test: its tokens, and the pages that a cache of tokens has them in.
struct Written {
    tokens: Vec<Token>,
    pages: Table,
}

/// Begin, write, fork, publish and end at random, against a cache of tokens: no page is lost, and
/// no sequence ever reads what another has written.
#[test]
fn whatever_forks_each_sequence_reads_its_own_tokens() {
    const SIZE: usize = 4;
    const MOST: usize = 6;
    let mut state = 7u64;
    let mut random = |below: usize| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    let mut pool = Pool::new(40, SIZE).unwrap();
    let mut cache = vec![0; 40 * SIZE];
    let mut live: Vec<Written> = Vec::new();
    let (mut forks, mut copies, mut full) = (0, 0, 0);
    for round in 0..20_000 {
        let at = random(live.len().max(1));
        match random(8) {
            0 => match pool.reserve(&[], MOST).unwrap() {
                Some(pages) => live.push(Written {
                    tokens: Vec::new(),
                    pages,
                }),
                None => full += 1,
            },
            1 if live.len() > 1 => {
                let child = random(live.len());
                let full = |at: usize| live[at].tokens.len() / SIZE;
                if child == at || full(child) > full(at) {
                    continue;
                }
                let [parent, child] = live.get_disjoint_mut([at, child]).unwrap();
                let copied = pool.fork(&parent.pages, &mut child.pages, parent.tokens.len());
                if let Some((from, to)) = copied {
                    let from = from as usize * SIZE;
                    cache.copy_within(from..from + SIZE, to as usize * SIZE);
                    copies += 1;
                }
                child.tokens.clone_from(&parent.tokens);
                forks += 1;
            }
            2 if !live.is_empty() => {
                let mut ended = live.swap_remove(at);
                pool.release(&mut ended.pages);
            }
            3 if !live.is_empty() => {
                // As the engine does: under the text up to there.
                let Written { tokens, pages } = &live[at];
                let mut parent = NodeId::Root(Root::default());
                for (text, page) in tokens.chunks_exact(SIZE).zip(pages.iter()) {
                    parent = pool.publish(parent, text, *page);
                }
            }
            _ if !live.is_empty() && live[at].tokens.len() < MOST * SIZE => {
                let Written { tokens, pages } = &mut live[at];
                let position = tokens.len();
                pool.grow(pages, position / SIZE + 1);
                let token = random(3) as Token + 10 * round;
                cache[pages[position / SIZE] as usize * SIZE + position % SIZE] = token;
                tokens.push(token);
            }
            _ => {}
        }
        for Written { tokens, pages } in &live {
            let read =
                |position: usize| cache[pages[position / SIZE] as usize * SIZE + position % SIZE];
            assert!(
                (0..tokens.len()).map(read).eq(tokens.iter().copied()),
                "round {round}"
            );
        }
        let mut held: Vec<u32> = live.iter().flat_map(|w| w.pages.iter().copied()).collect();
        held.sort_unstable();
        held.dedup();
        let promised: usize = live.iter().map(|w| MOST - w.pages.len()).sum();
        assert_eq!(pool.used(), held.len() + promised, "round {round}");
    }
    assert!(
        forks > 500 && copies > 200 && full > 50,
        "{forks} {copies} {full}"
    );
    live.iter_mut()
        .for_each(|ended| pool.release(&mut ended.pages));
    assert_eq!(pool.used(), 0);
}
