export * from './index.js';
import * as llamabi from './index.js';
export default llamabi;
