import llamabi from './index.js';

export const { Model, LlamaError, version, abiVersion } = llamabi;
export default llamabi;
