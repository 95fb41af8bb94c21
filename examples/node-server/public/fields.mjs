// Fields for numbers: what they hold, and what they say about anything else.

const field = (id) => document.getElementById(id);

/** What a field holds; undefined: nothing, which is allowed where `required` is not set. */
export const numberIn = (id) => (field(id).value === '' ? undefined : Number(field(id).value));

function complaint(input) {
  if (input.validity.valid) return '';
  const [least, most] = [input.min, input.max].map((bound) => Number(bound).toLocaleString('en'));
  const what = input.step === 'any' ? 'a number' : 'a whole number';
  return `${input.labels[0].textContent} must be ${what} from ${least} to ${most}${input.required ? '' : ', or empty'}.`;
}

function check(input) {
  const text = complaint(input);
  const place = document.getElementById(`${input.id}-problem`);
  // Setting the same text again would announce it again.
  if (place.textContent !== text) place.textContent = text;
  if (text === '') input.removeAttribute('aria-invalid');
  else input.setAttribute('aria-invalid', 'true');
  return text === '';
}

/** Whether all of them can be used; the first that cannot gets the focus. */
export function allValid(ids) {
  const wrong = ids.map(field).filter((input) => !check(input));
  wrong[0]?.closest('details')?.setAttribute('open', '');
  wrong[0]?.focus();
  return wrong.length === 0;
}

/** A complaint comes when somebody leaves the field, and goes while they mend it. */
export function watchFields(ids) {
  for (const input of ids.map(field)) {
    input.addEventListener('change', () => check(input));
    input.addEventListener('input', () => input.hasAttribute('aria-invalid') && check(input));
    input.addEventListener('blur', () => check(input)); // what is no number at all never changes
  }
}
