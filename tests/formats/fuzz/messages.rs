//! What ranks in several processes say to each other.

use super::{fuzz, harness};

#[test]
fn rank_message() {
    let words: [&[u8]; 9] = [
        &[0; 8],
        &[1, 0, 0, 0, 0, 0, 0, 0],
        &[0xff; 4],
        &[3, 0, 0, 0],
        &[8, 0, 0, 0],
        &[19, 0, 0, 0],
        &[20, 0, 0, 0],
        &[17, 0, 0, 0],
        &[10, 0, 0, 0],
    ];
    fuzz("rank_message", &words, 20_000, 15, harness::rank_message);
}
