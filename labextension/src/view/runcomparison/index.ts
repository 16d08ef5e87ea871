export { mountRunComparison, type IRunComparisonView } from './mount';
