
Register-ArgumentCompleter -Native -CommandName %(prog_name)s -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)
    $words = @($commandAst.CommandElements | Where-Object { $_.Extent.EndOffset -lt $cursorPosition } |
        ForEach-Object { $_.Extent.Text })
    $saved = $env:COMP_WORDS
    try {
        $env:COMP_WORDS = ($words + $wordToComplete) -join "`n"
        $env:%(complete_var)s = 'powershell_complete'
        & %(prog_name)s | ForEach-Object {
            $type, $word, $help = $_ -split "`t", 3
            if ($type -eq 'plain' -or $type -eq 'field') {
                [System.Management.Automation.CompletionResult]::new($word, $word, 'ParameterValue', $help)
            }
        }
    } finally {
        $env:COMP_WORDS = $saved
        Remove-Item Env:%(complete_var)s -ErrorAction SilentlyContinue
    }
}
