import 'uplot/dist/uPlot.min.css';
import './view.css';
import './picker.css';
import './lab.css';
