// The lookup pane before anything is looked up: what a lookup is, and two ways to begin.

import { visible } from './dom.js';
import { goodToken } from './moments.js';

export function welcome(state) {
  const size = state.blockSize, token = goodToken(state), actions = [];
  if (token) actions.push({ id: 'follow', label: `Follow ${token.request}:${token.position} “${visible(state.texts.get(token.request)[token.position]).text}”` });
  actions.push({ id: 'tour', label: 'Take the tour' });
  return {
    title: state.requests.length ? 'Click any token' : 'Nothing to look up yet', actions,
    text: state.requests.length ? 'Pagewalk walks from the token to the bytes of its key, one step at a time, and checks the answer.' : 'No tokens yet. Pick an example or press Generate.',
    steps: [['1', 'Token', `to its logical block: position // ${size}`], ['2', 'Block table', 'says which physical block holds it'], ['3', 'Slot', 'is one place in that block'], ['4', 'Key', 'is read at that byte address'], ['5', 'Weight', 'is checked against dense attention']],
  };
}
