// The beam search that a text is asked of: its sliders, and its tree.
import { Tree } from './tree.mjs';

const $ = (id) => document.getElementById(id);

export let tree = null;

/** How many beams; 1: none are searched, tokens are drawn. */
export const beams = () => Number($('num_beams').value);

/** The fields of a request that ask for the search; {}: none. */
export function searchFields() {
  if (beams() === 1) return {};
  return { use_beam_search: true, num_beams: beams(), length_penalty: Number($('length_penalty').value) };
}

/** An empty tree; without beams there is no place for one. */
export function resetTree() {
  tree.reset(beams());
  show();
}

const show = () => document.documentElement.toggleAttribute('data-beams', beams() > 1 || !tree.isEmpty);

function drawSliders() {
  const texts = { num_beams: beams() === 1 ? 'off' : String(beams()), length_penalty: Number($('length_penalty').value).toFixed(1) };
  for (const [id, text] of Object.entries(texts)) {
    document.querySelector(`output[for=${id}]`).textContent = text;
    $(id).setAttribute('aria-valuetext', text);
  }
  $('length_penalty').disabled = beams() === 1;
}

/** @param {(path: object[]) => void} onTake is given the tokens of a path of the tree */
export function watchSearch(onTake) {
  tree = new Tree($('tree'), $('tree-about'), onTake);
  resetTree();
  drawSliders();
  $('length_penalty').addEventListener('input', drawSliders);
  $('num_beams').addEventListener('input', () => {
    drawSliders();
    if (tree.isEmpty) resetTree();
    show();
  });
}
