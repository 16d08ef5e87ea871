/** The commands of nbmgpu; commands about a run take its id. */
export namespace CommandIDs {
  export const showRuns = 'nbmgpu:show-runs';
  export const openRun = 'nbmgpu:open-run';
  export const compareRuns = 'nbmgpu:compare-runs';
  export const labelRun = 'nbmgpu:label-run';
  export const stopRun = 'nbmgpu:stop-run';
  export const attachRun = 'nbmgpu:attach-run';
  export const exportRun = 'nbmgpu:export-run';
  export const reportRun = 'nbmgpu:report-run';
  export const openFolder = 'nbmgpu:open-folder';
  export const revealNotebook = 'nbmgpu:reveal-notebook';
  export const deleteRun = 'nbmgpu:delete-run';
  export const pickStrategy = 'nbmgpu:pick-strategy';
  export const insertLine = 'nbmgpu:insert-line';
}
